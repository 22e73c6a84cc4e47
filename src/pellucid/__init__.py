"""Language models you can see through."""
