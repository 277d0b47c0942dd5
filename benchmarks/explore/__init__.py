"""What the explorer visits of each protocol: configurations, and properties from the papers, not from the code.

A function that checks a property returns None if it holds, else a sentence about what is wrong; its docstring states
the property.
"""
