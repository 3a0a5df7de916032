"""How the compute providers of Transformer Lab can hand multi-node work to tl_slurm_adapter and tl_sky_adapter."""
