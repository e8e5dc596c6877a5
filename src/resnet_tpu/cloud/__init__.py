"""Jobs on Google Cloud: TPU VMs, Vertex AI and GKE."""
