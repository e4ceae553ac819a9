"""Text in, one pass of a network: tokens, words, inputs, capture and recording."""
