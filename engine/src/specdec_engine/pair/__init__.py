"""The command behind `specdec plugins doctor --pair`: whether a draft fits a target, by files and a short run."""
