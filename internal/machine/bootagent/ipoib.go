package bootagent

import (
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// ipoibModule carries IP over InfiniBand. No device names it, so nothing else loads it.
const ipoibModule = "ib_ipoib"

// fullMember is the membership bit of a partition key: Linux looks for a key in the port's table without it, and joins the partition's broadcast group
// with it.
const fullMember = 0x8000

// ipoibNIC is an interface with IP over InfiniBand.
type ipoibNIC struct {
	name string
	// key is the partition key. child: it was made on a port's interface for another partition than the port's first.
	key   int
	child bool
}

// planPartition returns which interface of a port is in a partition: the port's own, or a child. Else it returns the interface on which one is to be made.
func planPartition(seen []ipoibNIC, key int) (use, makeOn string) {
	if i := slices.IndexFunc(seen, func(n ipoibNIC) bool { return n.key&^fullMember == key&^fullMember }); i >= 0 {
		return seen[i].name, ""
	}
	if i := slices.IndexFunc(seen, func(n ipoibNIC) bool { return !n.child }); i >= 0 {
		return "", seen[i].name
	}
	return "", ""
}

// ipoibTree makes interfaces for partitions by the files of Linux (Documentation/infiniband/ipoib.rst).
type ipoibTree struct {
	// dir is /sys/class/net, and write writes to a file that exists.
	dir   string
	write func(file, text string) error
}

func kernelIPoIB() ipoibTree {
	return ipoibTree{"/sys/class/net", func(file, text string) error { return os.WriteFile(file, []byte(text), 0) }}
}

func (t ipoibTree) text(nic, file string) string {
	text, _ := os.ReadFile(filepath.Join(t.dir, nic, file))
	return strings.TrimSpace(string(text))
}

// of returns the interfaces of a port. Their addresses end with its GUID (RFC 4391, section 9.1.1).
func (t ipoibTree) of(guid string) ([]ipoibNIC, error) {
	entries, err := os.ReadDir(t.dir)
	if err != nil {
		return nil, err
	}
	var all []ipoibNIC
	for _, e := range entries {
		address, err := net.ParseMAC(t.text(e.Name(), "address"))
		if err != nil || len(address) != 20 || hex.EncodeToString(address[12:]) != guid {
			continue
		}
		key, err := strconv.ParseInt(t.text(e.Name(), "pkey"), 0, 32)
		if err != nil {
			return nil, fmt.Errorf("the partition key of interface %s: %w", e.Name(), err)
		}
		all = append(all, ipoibNIC{e.Name(), int(key), t.text(e.Name(), "iflink") != t.text(e.Name(), "ifindex")})
	}
	return all, nil
}

// partition returns the name of the interface that is in the partition of an interface of the Setup, in its mode. It makes a child where the port's own is
// in another partition.
func (t ipoibTree) partition(i guestlink.Interface) (string, error) {
	seen, err := t.of(i.GUID)
	if err != nil {
		return "", err
	}
	name, makeOn := planPartition(seen, i.PKey)
	if makeOn != "" {
		if err := t.write(filepath.Join(t.dir, makeOn, "create_child"), fmt.Sprintf("0x%04x", i.PKey|fullMember)); err != nil {
			return "", fmt.Errorf("make an interface for partition 0x%04x on %s: %w", i.PKey|fullMember, makeOn, err)
		}
		if seen, err = t.of(i.GUID); err != nil {
			return "", err
		}
		name, _ = planPartition(seen, i.PKey)
	}
	if name == "" {
		return "", fmt.Errorf("no interface of port %s is in partition 0x%04x", i.GUID, i.PKey|fullMember)
	}
	mode := "datagram"
	if i.Connected {
		mode = "connected"
	}
	if now := t.text(name, "mode"); now != mode {
		if err := t.write(filepath.Join(t.dir, name, "mode"), mode+"\n"); err != nil {
			return "", fmt.Errorf("set interface %s from mode %s to %s, which drivers with enhanced IPoIB refuse (option ipoib_enhanced of %s): %w", name, now, mode, ipoibModule, err)
		}
	}
	return name, nil
}

// modulesFor returns the modules that interfaces need, and that no device names.
func modulesFor(all []guestlink.Interface) []string {
	if slices.ContainsFunc(all, func(i guestlink.Interface) bool { return i.GUID != "" }) {
		return []string{ipoibModule}
	}
	return nil
}
