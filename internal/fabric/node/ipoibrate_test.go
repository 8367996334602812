package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
)

// sysfsOf is a tree of sysfs with files, by path.
func sysfsOf(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestTheRateOfAnIPoIBInterfaceIsThatOfItsPort(t *testing.T) {
	root := sysfsOf(t, map[string]string{
		"class/net/ib0/dev_port":                                 "0",
		"class/net/ib0/device/infiniband/mlx4_0/ports/1/rate":    "56 Gb/sec (4X FDR)",
		"class/net/ib0/device/infiniband/mlx4_0/ports/2/rate":    "10 Gb/sec (4X SDR)",
		"class/net/ib1/dev_port":                                 "1",
		"class/net/ib1/device/infiniband/mlx4_0/ports/1/rate":    "56 Gb/sec (4X FDR)",
		"class/net/ib1/device/infiniband/mlx4_0/ports/2/rate":    "10 Gb/sec (4X SDR)",
		"class/net/ibdown/dev_port":                              "0",
		"class/net/ibdown/device/infiniband/mlx5_1/ports/1/rate": "2.5 Gb/sec (1X SDR)",
		"class/net/ibodd/dev_port":                               "0",
		"class/net/ibodd/device/infiniband/mlx5_2/ports/1/rate":  "fast",
		"class/net/bond0/mtu":                                    "2044",
	})
	for name, want := range map[string]int64{"ib0": 56e9, "ib1": 10e9, "ibdown": 25e8, "ibodd": 0, "bond0": 0, "none": 0} {
		if got := infiniBandRate(root, name); got != want {
			t.Errorf("%s: %d bit/s, want %d", name, got, want)
		}
	}
}

func TestALinkThatIsNeitherEthernetNorInfiniBandHasNoRate(t *testing.T) {
	for _, encap := range []string{"none", encapInfiniBand} { // the latter has no port in this machine
		link := &netlink.IPoIB{LinkAttrs: netlink.LinkAttrs{Name: "nmtest-no-such", EncapType: encap}}
		if got := rateOf(link); got != 0 {
			t.Errorf("%s: %d bit/s", encap, got)
		}
	}
}

func TestShortcutsAreOverEthernetAlone(t *testing.T) {
	for encap, want := range map[string]string{encapEthernet: "x0", encapInfiniBand: "", "none": ""} {
		if got := shortcutLink(&netlink.LinkAttrs{Name: "x0", EncapType: encap}); got != want {
			t.Errorf("%s: got %q, want %q", encap, got, want)
		}
	}
}
