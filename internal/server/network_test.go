package server

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
)

func TestRangesFollowFromTheNetworkUnlessGiven(t *testing.T) {
	for name, test := range map[string]struct {
		address string
		cfg     config.Provision
		want    string // machines, strangers; or the error
	}{
		"server first":         {"10.9.0.1/24", config.Provision{}, "10.9.0.2-10.9.0.191 10.9.0.192-10.9.0.254"},
		"server last":          {"10.9.0.254/24", config.Provision{}, "10.9.0.1-10.9.0.190 10.9.0.191-10.9.0.253"},
		"server in the middle": {"10.9.0.100/24", config.Provision{}, "10.9.0.101-10.9.0.216 10.9.0.217-10.9.0.254"},
		"a large network":      {"10.9.0.1/16", config.Provision{}, "10.9.0.2-10.9.254.254 10.9.254.255-10.9.255.254"},
		"given":                {"10.9.0.1/24", config.Provision{Machines: "10.9.0.10-10.9.0.20", Strangers: "10.9.0.30-10.9.0.40"}, "10.9.0.10-10.9.0.20 10.9.0.30-10.9.0.40"},
		"no range":             {"10.9.0.1/24", config.Provision{Machines: "10.9.0.10"}, "write FROM-TO"},
		"overlapping":          {"10.9.0.1/24", config.Provision{Machines: "10.9.0.10-10.9.0.40", Strangers: "10.9.0.30-10.9.0.50"}, "overlap"},
		"holding the server":   {"10.9.0.1/24", config.Provision{Machines: "10.9.0.1-10.9.0.40"}, "server's own address"},
		"outside the network":  {"10.9.0.1/24", config.Provision{Machines: "10.9.1.1-10.9.1.40"}, "not within"},
		"backwards":            {"10.9.0.1/24", config.Provision{Machines: "10.9.0.40-10.9.0.10"}, "contains no address"},
	} {
		t.Run(name, func(t *testing.T) {
			n := netboot.Network{Interface: "prov0", Address: netip.MustParsePrefix(test.address), HTTPPort: 80}
			err := ranges(&n, test.cfg)
			if err == nil {
				err = n.Check()
			}
			got := n.Machines.String() + " " + n.Strangers.String()
			if err != nil {
				got = err.Error()
			}
			if err == nil && got != test.want || err != nil && !strings.Contains(got, test.want) {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestATableOfNeighboursThatIsTooSmallIsToldOf(t *testing.T) {
	n := netboot.Network{Machines: netboot.Range{From: netip.MustParseAddr("10.9.0.1"), To: netip.MustParseAddr("10.9.7.208")}}
	limit := filepath.Join(t.TempDir(), "gc_thresh3")
	for text, told := range map[string]bool{"1024\n": true, "2000\n": false, "nonsense": false} {
		if err := os.WriteFile(limit, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := crowded(n, limit); (got != "") != told {
			t.Errorf("with %q it says %q", text, got)
		}
	}
}

func TestTheAPIListensForMachinesUnlessItDoesAlready(t *testing.T) {
	n := netboot.Network{Address: netip.MustParsePrefix("10.9.0.1/24")}
	for listen, extra := range map[string]bool{"127.0.0.1:7700": true, "0.0.0.0:7700": false, ":7700": false, "10.9.0.1:7700": false, "[::]:7700": false} {
		address, got, err := agentAddress(listen, n)
		if err != nil || got != extra || address != "10.9.0.1:7700" {
			t.Errorf("%s: got %s, %v, %v; want extra %v", listen, address, got, err, extra)
		}
	}
}

func TestFirmwareIsPointedAtALoaderThatIsThere(t *testing.T) {
	n := netboot.Network{Address: netip.MustParsePrefix("10.9.0.1/24"), HTTPPort: 8069}
	dir := t.TempDir()
	for _, step := range []struct{ add, want string }{
		{"undionly.kpxe", ""}, {"ipxe.efi", "http://10.9.0.1:8069/loader/ipxe.efi"}, {"snponly.efi", "http://10.9.0.1:8069/loader/snponly.efi"},
	} {
		if err := os.WriteFile(filepath.Join(dir, step.add), []byte("loader"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := loaderURL(n, dir); got != step.want {
			t.Errorf("with %s: %q, want %q", step.add, got, step.want)
		}
	}
	if got := loaderURL(n, filepath.Join(dir, "nowhere")); got != "" {
		t.Errorf("without a directory: %q", got)
	}
}
