package node

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// readTrunk adds what the trunk carries, or why it can't be used and what to change.
func (f *Fabric) readTrunk(under *fabric.Underlay) error {
	name := f.cfg.Trunk
	if name == "" {
		return nil
	}
	return f.node.Do(func() error {
		link, err := netlink.LinkByName(name)
		var missing netlink.LinkNotFoundError
		switch {
		case errors.As(err, &missing):
			under.TrunkProblem = fmt.Sprintf("there is no link %s: correct the agent's --trunk-interface ('ip link' lists the links)", name)
		case err != nil:
			return fmt.Errorf("reading the trunk: %w", err)
		case link.Attrs().EncapType != "ether":
			under.TrunkProblem = fmt.Sprintf("link %s is not an Ethernet device (%s): give the agent's --trunk-interface one", name, link.Attrs().EncapType)
		case link.Attrs().Flags&unix.IFF_UP == 0:
			under.TrunkProblem = fmt.Sprintf("link %s is down: set it up (ip link set %[1]s up)", name)
		default:
			under.TrunkMTU = link.Attrs().MTU
		}
		return nil
	})
}
