"""The plan folders: plans, their stages and results, and the data that ended ones leave."""
