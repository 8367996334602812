package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
)

// storageFlags are the flags of `cluster create` for home and volumes.
type storageFlags struct {
	home    string
	volumes []string
	// datasets are names.
	datasets []string
}

func (f *storageFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.home, "home", "", "home of its members: cluster, a directory that is deleted with it; SIZE or cluster:SIZE, a volume of this size that is deleted with it; user or user:SIZE, your persistent home in the project, made with this size if it does not exist (10GiB by default); or none, a private directory of each member (default: cluster)")
	cmd.Flags().StringArrayVar(&f.volumes, "volume", nil, "volume of the project that its members have attached, NAME[:PATH][:ro]: at /volumes/NAME or PATH, and read-only with ro; may be repeated")
	cmd.Flags().StringArrayVar(&f.datasets, "dataset", nil, "dataset of the project that its members read: NAME, a copy at /datasets/NAME; NAME:stream, its sources by URL; NAME:cached, URLs of a cache on the member's node; NAME:preloaded, the same with all of it in the cache before the member starts; or NAME:auto[:FRACTION], the quickest of copy, stream and cached for a member that reads that fraction, such as 0.2 (learned by default); URLs are in /etc/nearmetal/datasets/NAME.urls; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("home", cobra.FixedCompletions([]string{api.HomeOfCluster, api.HomeOfUser, api.HomeNone}, cobra.ShellCompDirectiveNoFileComp))
}

// fields fills in what the flags ask for, and returns the fields that were given.
func (f *storageFlags) fields(cmd *cobra.Command, req *api.ClusterRequest) ([]string, error) {
	var given []string
	if cmd.Flags().Changed("home") {
		kind, size, sized := strings.Cut(f.home, ":")
		if bytes, err := api.ParseBytes(f.home); err == nil { // a size alone
			req.Home.Size, given = bytes, append(given, "home.size")
		} else {
			req.Home.Kind, given = kind, append(given, "home.kind")
		}
		if sized {
			bytes, err := api.ParseBytes(size)
			if err != nil {
				return nil, usage("--home: %v", err)
			}
			req.Home.Size, given = bytes, append(given, "home.size")
		}
	}
	for _, text := range f.volumes {
		v, err := parseVolume(text)
		if err != nil {
			return nil, err
		}
		req.Volumes = append(req.Volumes, v)
	}
	if req.Datasets = f.datasets; len(f.datasets) > 0 {
		given = append(given, "datasets")
	}
	return given, nil
}

// parseVolume reads NAME[:PATH][:ro].
func parseVolume(text string) (api.VolumeAttachment, error) {
	parts := strings.Split(text, ":")
	v := api.VolumeAttachment{Name: parts[0]}
	rest := parts[1:]
	if n := len(rest); n > 0 && rest[n-1] == "ro" {
		v.ReadOnly, rest = true, rest[:n-1]
	}
	switch {
	case v.Name == "" || len(rest) > 1 || len(rest) == 1 && rest[0] == "":
		return v, usage("--volume: %q is no volume; write NAME, NAME:PATH, NAME:ro or NAME:PATH:ro", text)
	case len(rest) == 1:
		v.Path = rest[0]
	}
	return v, nil
}

// clusterHomeText is what kind of home a cluster has, "" for that of most.
func clusterHomeText(spec api.ClusterSpec) string {
	switch {
	case slices.ContainsFunc(spec.Volumes, func(v api.VolumeAttachment) bool { return v.MountPath() == "/home" }):
		return "a volume, which is kept when the cluster is deleted"
	case spec.Home.Bounded():
		return "a volume of " + volumeBytes(spec.Home.Size) + ", which is deleted with the cluster"
	case spec.Home.Kind == api.HomeOfUser:
		return "the user's, which is kept when the cluster is deleted"
	case spec.Home.Kind == api.HomeNone:
		return "none: each member has a private directory"
	}
	return ""
}

// volumesText lists the volumes of a cluster: data (/volumes/data), reference (/ref, read-only).
func volumesText(spec api.ClusterSpec) string {
	texts := make([]string, len(spec.Volumes))
	for i, v := range spec.Volumes {
		texts[i] = v.Name + " (" + v.MountPath() + ")"
		if v.ReadOnly {
			texts[i] = v.Name + " (" + v.MountPath() + ", read-only)"
		}
	}
	return strings.Join(texts, ", ")
}
