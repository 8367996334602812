package cli

import (
	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
)

// interconnectFlags adds what a cluster asks of its nodes' fabric.
func (f *createFlags) interconnectFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.interconnect, "interconnect", "", "fabric that its nodes are connected to: infiniband, ethernet or any; 'nearmetal fabric list' lists them")
	flags.StringVar(&f.minRate, "min-rate", "", "least rate of its nodes' link to a fabric, such as 100Gbit")
	flags.BoolVar(&f.rdma, "rdma", false, "use nodes on a fabric that carries RDMA only")
	_ = cmd.RegisterFlagCompletionFunc("interconnect", cobra.FixedCompletions([]string{"infiniband", "ethernet", "any"}, cobra.ShellCompDirectiveNoFileComp))
}

// interconnectField sets what was given.
func (f *createFlags) interconnectField(cmd *cobra.Command, req *api.ClusterRequest) error {
	if cmd.Flags().Changed("min-rate") {
		rate, err := api.ParseRate(f.minRate)
		if err != nil {
			return usage("--min-rate: %v", err)
		}
		req.Interconnect.MinRate = rate
	}
	req.Interconnect.Technology, req.Interconnect.RDMA = api.FabricTechnology(f.interconnect), f.rdma
	return nil
}
