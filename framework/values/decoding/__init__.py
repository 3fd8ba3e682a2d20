"""What the compiled decoders share: slots that they write, and columns made of them."""
