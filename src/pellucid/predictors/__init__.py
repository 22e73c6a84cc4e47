"""Next-token predictors that are not transformers: n-grams, fixed contexts, recurrent networks. Also the baselines."""
