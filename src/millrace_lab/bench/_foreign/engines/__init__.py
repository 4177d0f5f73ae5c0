"""Other stream processors as sides of `millrace bench peers`. Nothing in here imports Millrace."""
