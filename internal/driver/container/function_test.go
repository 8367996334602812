package container

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// adapterTree is sysfs with an adapter of one virtual function, and its RDMA device.
func adapterTree(t *testing.T) string {
	t.Helper()
	sys := t.TempDir()
	pf := filepath.Join(sys, "bus/pci/devices/0000:3b:00.0")
	verbs := filepath.Join(sys, "class/infiniband/mlx5_3/device/infiniband_verbs/uverbs3")
	err := errors.Join(os.MkdirAll(pf, 0o755), os.MkdirAll(verbs, 0o755), os.Symlink("../0000:3b:10.2", filepath.Join(pf, "virtfn3")),
		os.WriteFile(filepath.Join(verbs, "dev"), []byte("231:195\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	return sys
}

func TestAMemberGetsTheDeviceFilesOfItsOwnRDMADeviceOnly(t *testing.T) {
	sys := adapterTree(t)
	got, err := verbsOf(sys, "mlx5_3")
	if err != nil || len(got) != 1 || got[0].Path != "/dev/infiniband/uverbs3" || got[0].Major != 231 || got[0].Minor != 195 || got[0].Type != "c" {
		t.Fatalf("got %+v, %v", got, err)
	}
	r := resources(specInput{devices: got})
	if len(r.Devices) != 2 || r.Devices[0].Allow || r.Devices[0].Access != "rwm" || !r.Devices[1].Allow || *r.Devices[1].Major != 231 || *r.Devices[1].Minor != 195 || r.Devices[1].Access != "rw" {
		t.Errorf("its control group allows %+v", r.Devices)
	}
	if got, err := verbsOf(sys, ""); err != nil || got != nil {
		t.Errorf("a function without RDMA: %v, %v", got, err)
	}
	if _, err := verbsOf(sys, "mlx5_4"); err == nil || !strings.Contains(err.Error(), "modprobe ib_uverbs") {
		t.Errorf("an RDMA device without device file: %v", err)
	}
}

func TestAFunctionIsWhereTheKernelShowsIt(t *testing.T) {
	sys := adapterTree(t)
	f := fabric.Function{Device: "0000:3b:00.0", Part: "vf3"}
	if got, err := pciOf(sys, f); err != nil || got != "0000:3b:10.2" {
		t.Errorf("got %q, %v", got, err)
	}
	f.Part = ""
	if got, err := pciOf(sys, f); err != nil || got != f.Device {
		t.Errorf("of a whole port: %q, %v", got, err)
	}
	f.Part = "vf4"
	if got, err := pciOf(sys, f); !errors.Is(err, fabric.ErrNoFunction) {
		t.Errorf("of one that is not there: %q, %v", got, err)
	}
}

func TestContainersGetNoMACVTAPAndNoOtherDevices(t *testing.T) {
	for name, c := range map[string]struct {
		assignment api.Assignment
		want       string
	}{
		"MACVTAP": {api.Assignment{Ports: []api.PortClaim{{Kind: api.PortMACVTAP}}}, "ask for the interface vf"},
		"FPGA":    {api.Assignment{Devices: []api.DeviceClaim{{Class: "fpga", Device: "fpga0"}}}, "classes nic, hca and gpu only"},
		"slice":   {api.Assignment{Devices: []api.DeviceClaim{{Class: "gpu", Device: "gpu0", Way: "1g.18gb"}}}, "containers get whole GPUs and slices only"},
		"no port": {api.Assignment{Devices: []api.DeviceClaim{{Class: "nic", Device: "0000:3b:00.0", Part: "vf3"}}}, "none of its ports"},
	} {
		if err := checkFunctions(&c.assignment); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
