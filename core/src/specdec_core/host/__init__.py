"""The host half of the contract: what every engine that runs proposers shares."""
