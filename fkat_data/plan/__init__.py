"""What is produced next, and how far the caller is: values, no effects."""
