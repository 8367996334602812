package cli

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
)

func TestAHomeIsAKindASizeOrBoth(t *testing.T) {
	for text, want := range map[string]struct {
		home  api.ClusterHome
		shown string
	}{
		"cluster":       {api.ClusterHome{Kind: api.HomeOfCluster}, ""},
		"10GiB":         {api.ClusterHome{Size: 10 << 30}, "a volume of 10GiB, which is deleted with the cluster"},
		"cluster:10GiB": {api.ClusterHome{Kind: api.HomeOfCluster, Size: 10 << 30}, "a volume of 10GiB, which is deleted with the cluster"},
		"user":          {api.ClusterHome{Kind: api.HomeOfUser}, "the user's, which is kept when the cluster is deleted"},
		"user:20GiB":    {api.ClusterHome{Kind: api.HomeOfUser, Size: 20 << 30}, "the user's, which is kept when the cluster is deleted"},
		"none":          {api.ClusterHome{Kind: api.HomeNone}, "none: each member has a private directory"},
	} {
		var f storageFlags
		var req api.ClusterRequest
		cmd := &cobra.Command{}
		f.add(cmd)
		if err := cmd.Flags().Set("home", text); err != nil {
			t.Fatal(err)
		}
		if _, err := f.fields(cmd, &req); err != nil || req.Home != want.home {
			t.Errorf("--home %s asks for %+v, %v; want %+v", text, req.Home, err, want.home)
		}
		if got := clusterHomeText(api.ClusterSpec{Home: req.Home}); got != want.shown {
			t.Errorf("--home %s is shown as %q, want %q", text, got, want.shown)
		}
	}
}
