package api

// Service is software of an environment that a cluster sets up for itself: it configures the software for its members, and member agents
// start its daemons.
type Service string

// ServiceSlurm is Slurm with munge: the programs munged, slurmctld, slurmd and scontrol.
const ServiceSlurm Service = "slurm"
