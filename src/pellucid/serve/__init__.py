"""A model behind the OpenAI interface: requests are batched continuously, and each is answered as if it were alone."""
