"""What is checked of each protocol: properties written from the papers, not from the machines' code."""
