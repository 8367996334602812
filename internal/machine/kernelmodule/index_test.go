package kernelmodule

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// write makes a lib/modules/VERSION of these files.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func small(t *testing.T) *Index {
	t.Helper()
	x, err := ReadIndex(write(t, map[string]string{
		"modules.dep": "kernel/fs/erofs/erofs.ko: kernel/lib/libcrc32c.ko\n" +
			"kernel/lib/libcrc32c.ko:\n" +
			"kernel/crypto/crc32c_generic.ko.xz:\n" +
			"kernel/drivers/net/virtio_net.ko: kernel/drivers/net/net_failover.ko kernel/net/failover.ko\n" +
			"kernel/drivers/net/net_failover.ko: kernel/net/failover.ko\n" +
			"kernel/net/failover.ko:\n" +
			"kernel/drivers/char/ipmi-msghandler.ko:\nkernel/drivers/char/ipmi_devintf.ko: kernel/drivers/char/ipmi-msghandler.ko\n",
		"modules.alias": "# Aliases\nalias virtio:d00000001v* virtio_net\nalias fs-erofs erofs\nalias crypto-crc32c crc32c_generic\nalias crc32c crc32c_generic\n" +
			"alias pci:v00008086d000010D3sv*sd*bc*sc*i* virtio_net\n",
		"modules.softdep": "softdep libcrc32c pre: crc32c\nsoftdep ipmi_msghandler post: ipmi_devintf\n",
		"modules.builtin": "kernel/drivers/block/loop.ko\n",
	}))
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestModulesAreLoadedAfterWhatTheyNeed(t *testing.T) {
	x := small(t)
	for name, want := range map[string]string{
		"erofs":           "crc32c_generic libcrc32c erofs",
		"virtio_net":      "failover net_failover virtio_net",
		"virtio-net":      "failover net_failover virtio_net",
		"ipmi_msghandler": "ipmi_msghandler ipmi_devintf",
		"loop":            "",
		"nothing":         "",
	} {
		if got := strings.Join(x.Order(name), " "); got != want {
			t.Errorf("Order(%s) = %q, want %q", name, got, want)
		}
	}
	if got, want := x.Drivers(), []string{"loop", "virtio_net"}; !slices.Equal(got, want) {
		t.Errorf("PCI devices are driven by %v, want %v", got, want)
	}
	if !x.Builtin("loop") || x.Has("loop") || !x.Has("ipmi-msghandler") {
		t.Error("loop is built in, ipmi-msghandler is a module")
	}
	if got := x.File("crc32c-generic"); got != "kernel/crypto/crc32c_generic.ko.xz" {
		t.Errorf("the file of crc32c-generic is %q", got)
	}
}

func TestDevicesFindTheirModules(t *testing.T) {
	x := small(t)
	for modalias, want := range map[string][]string{
		"virtio:d00000001v00001AF4":                             {"virtio_net"},
		"virtio:d00000002v00001AF4":                             nil,
		"pci:v00008086d000010D3sv00008086sd00000000bc02sc00i00": {"virtio_net"},
		"fs-erofs": {"erofs"},
		"erofs":    {"erofs"},
		"":         nil,
	} {
		if got := x.Match(modalias); !slices.Equal(got, want) {
			t.Errorf("Match(%q) = %v, want %v", modalias, got, want)
		}
	}
}

func TestASubsetReadsBackAsItWasWritten(t *testing.T) {
	x := small(t)
	s := x.Subset(x.Closure([]string{"erofs", "virtio_net"}))
	dir := write(t, map[string]string{
		"modules.dep": string(s.Dependencies()), "modules.alias": string(s.Aliases()), "modules.softdep": string(s.SoftDependencies()),
	})
	again, err := ReadIndex(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"erofs", "virtio_net"} {
		if got, want := again.Order(name), x.Order(name); !slices.Equal(got, want) {
			t.Errorf("Order(%s) = %v after writing and reading, want %v", name, got, want)
		}
	}
	if again.Has("ipmi_devintf") || len(again.Match("virtio:d00000001v1")) != 1 {
		t.Error("the subset has other modules or lacks aliases")
	}
}

func TestADamagedIndexIsNamedWithTheLine(t *testing.T) {
	dir := write(t, map[string]string{"modules.dep": "kernel/a.ko:\n", "modules.alias": "# Aliases\nalias x\n"})
	if _, err := ReadIndex(dir); err == nil || !strings.Contains(err.Error(), "modules.alias, line 2") {
		t.Errorf("got %v, want one that names modules.alias, line 2", err)
	}
	if _, err := ReadIndex(t.TempDir()); err == nil {
		t.Error("a folder without indexes was read")
	}
}
