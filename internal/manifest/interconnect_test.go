package manifest_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

func TestAnInterconnectIsReadAndWhatItCanNotBeIsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, body string
		want       api.Interconnect
		problem    string
	}{
		{"a technology with a rate and RDMA", "interconnect: {technology: infiniband, min_rate: 100Gbit, rdma: true}", api.Interconnect{Technology: api.FabricInfiniBand, MinRate: 100e9, RDMA: true}, ""},
		{"any technology", "interconnect: {technology: any, min_rate: 25Gbit}", api.Interconnect{MinRate: 25e9}, ""},
		{"a technology that is none", "interconnect: {technology: infinband}", api.Interconnect{}, `did you mean "infiniband"?`},
		{"an empty technology", `interconnect: {technology: ""}`, api.Interconnect{}, "is empty"},
		{"a rate without a unit", "interconnect: {min_rate: fast}", api.Interconnect{}, "rate"},
		{"one beside groups", "interconnect: {rdma: true}\ngroups: [{name: a, size: 1, cores: 1}]", api.Interconnect{}, "conflicts with groups"},
	} {
		req, src, err := manifest.DecodeCluster([]byte("name: c1\n"+tt.body+"\n"), manifest.YAML)
		if err == nil {
			var c manifest.Cluster
			if c, err = manifest.Normalize(req, src); err == nil && tt.problem == "" && c.Spec.Groups[0].Interconnect != tt.want {
				t.Errorf("%s: got %+v, want %+v", tt.name, c.Spec.Groups[0].Interconnect, tt.want)
			}
		}
		if tt.problem == "" && err != nil || tt.problem != "" && (err == nil || !strings.Contains(err.Error(), tt.problem)) {
			t.Errorf("%s: got error %v, want one with %q", tt.name, err, tt.problem)
		}
	}
}
