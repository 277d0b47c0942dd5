"""What the explorer visits of each protocol: systems, and properties written from the papers, not from the code."""
