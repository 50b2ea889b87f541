"""Who trains which samples: the order of picks, the pool of an epoch, plans and their rollback."""
