"""A decoder's layers in one parallel region of compiled code; what does not fit runs through the modules."""
