"""Other libraries' call names over Vivace's ops."""
