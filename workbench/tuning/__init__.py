"""Search, diagnosis and advice: joins measuring and predicting."""
