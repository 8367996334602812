package build

import (
	"context"
	"os"

	"github.com/nearmetal/nearmetal/api"
)

// programsOf are what a member agent runs of each service, and the Debian package of each.
var programsOf = map[api.Service][]struct{ path, pkg string }{
	api.ServiceSlurm: {
		{"usr/sbin/munged", "munge"}, {"usr/sbin/slurmctld", "slurmctld"}, {"usr/sbin/slurmd", "slurmd"}, {"usr/bin/scontrol", "slurm-client"},
	},
}

// services checks that the root has the programs of the recipe's services: else no member of the environment would become ready.
func (w *worker) services(context.Context) error {
	root, err := os.OpenRoot(w.tree)
	if err != nil {
		return err
	}
	defer root.Close()
	return lacking(root, w.Recipe.Services)
}

func lacking(root *os.Root, services []api.Service) error {
	for _, s := range services {
		for _, p := range programsOf[s] {
			info, err := root.Lstat(p.path)
			if err != nil || info.Mode().Type() != os.ModeSymlink && (!info.Mode().IsRegular() || info.Mode()&0o111 == 0) { // links, as of alternatives, lead out of root
				return failf("service %s: the environment has no program /%s; on Debian, add the package %s", s, p.path, p.pkg)
			}
		}
	}
	return nil
}
