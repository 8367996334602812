package shaper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/clsact"
)

// destinationAt is where the destination is in an IPv4 header (RFC 791, section 3.1).
const destinationAt = 16

// peersPriority is that of the filters that choose the class of a peer.
const peersPriority = 1

// SetPeers holds what a link sends to some IPv4 addresses to rates in bytes per second, and what it sends to others to none. It belongs in the link's
// network namespace, and works for links that nothing else shapes. What is as it should be stays untouched. Without rates, it removes all queues.
func SetPeers(link string, rates map[netip.Addr]int64) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	has, whole, err := Peers(link)
	if err != nil {
		return fmt.Errorf("reading the rates of %s: %w", link, err)
	}
	if whole && maps.Equal(has, rates) {
		return nil
	}
	if err := setPeers(l, rates); err != nil {
		return fmt.Errorf("limiting what %s sends: %w", link, err)
	}
	if has, whole, err = Peers(link); err != nil {
		return fmt.Errorf("reading the rates of %s: %w", link, err)
	}
	if !whole || !maps.Equal(has, rates) {
		return fmt.Errorf("limiting what %s sends: the kernel reports the rates %v, and not %v", link, has, rates)
	}
	return nil
}

// setPeers makes the queues anew. What waits in those that were there is lost, and sent again by its senders.
func setPeers(link netlink.Link, rates map[netip.Addr]int64) error {
	index := link.Attrs().Index
	if err := deleteRoot(index); err != nil || len(rates) == 0 {
		return err
	}
	tree := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT, Handle: handle(treeMajor, 0)})
	tree.Defcls = 0
	if err := netlink.QdiscAdd(tree); err != nil {
		return err
	}
	for i, peer := range slices.SortedFunc(maps.Keys(rates), netip.Addr.Compare) {
		bits, minor := 8*rates[peer], uint16(i+1)
		class := object{kind: "htb", index: index, parent: handle(treeMajor, 0), handle: handle(treeMajor, minor)}
		if err := modify(unix.RTM_NEWTCLASS, unix.NLM_F_CREATE, class, classOptions(bits, bits)); err != nil {
			return err
		}
		queue := object{kind: "bfifo", index: index, parent: class.handle, handle: handle(minor, 0)}
		if err := modify(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, queue, queueOptions(bits)); err != nil {
			return err
		}
		to := peer.As4()
		if err := netlink.FilterAdd(&netlink.U32{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: handle(treeMajor, 0), Priority: peersPriority, Protocol: unix.ETH_P_IP},
			ClassId:     class.handle,
			Sel: &nl.TcU32Sel{
				Flags: nl.TC_U32_TERMINAL, Nkeys: 1, Keys: []nl.TcU32Key{{Mask: 1<<32 - 1, Val: binary.BigEndian.Uint32(to[:]), Off: destinationAt}},
			},
		}); err != nil {
			return fmt.Errorf("choosing by destination: %w", err)
		}
	}
	return nil
}

// Peers returns the rates of a link in bytes per second, and whether there is nothing else in their place.
func Peers(link string) (rates map[netip.Addr]int64, whole bool, err error) {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return nil, false, err
	}
	index := l.Attrs().Index
	queues, err := list(unix.RTM_GETQDISC, unix.RTM_NEWQDISC, 0, 0)
	if err != nil {
		return nil, false, err
	}
	rates = map[netip.Addr]int64{}
	tree, lengths := false, map[uint32]uint32{}
	for _, q := range queues {
		switch {
		case q.index != index || q.kind == "noqueue":
		case q.parent == netlink.HANDLE_ROOT:
			if q.kind != "htb" || q.handle != handle(treeMajor, 0) {
				return rates, false, nil
			}
			tree = true
		case q.kind == "bfifo" && len(q.options) >= 4:
			lengths[q.parent] = binary.NativeEndian.Uint32(q.options)
		}
	}
	if !tree {
		return rates, true, nil
	}
	return readPeers(l, lengths)
}

// readPeers reads the classes of peers, and the filters that choose them.
func readPeers(link netlink.Link, lengths map[uint32]uint32) (rates map[netip.Addr]int64, whole bool, err error) {
	rates, whole = map[netip.Addr]int64{}, true
	objects, err := list(unix.RTM_GETTCLASS, unix.RTM_NEWTCLASS, link.Attrs().Index, 0)
	if err != nil && !clsact.IsAbsent(err) {
		return nil, false, err
	}
	bits := map[uint32]int64{}
	for _, o := range objects {
		low, high, good := readClass(o.options)
		whole = whole && good && low == high && lengths[o.handle] == binary.NativeEndian.Uint32(queueOptions(high))
		bits[o.handle] = high
	}
	filters, err := netlink.FilterList(link, handle(treeMajor, 0))
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return nil, false, err
	}
	for _, f := range filters {
		u, ok := f.(*netlink.U32)
		if !ok {
			return rates, false, nil
		}
		if u.Sel == nil || len(u.Sel.Keys) == 0 {
			continue // the table that the kernel makes for filters
		}
		key := u.Sel.Keys[0]
		if len(u.Sel.Keys) != 1 || key.Mask != 1<<32-1 || key.Off != destinationAt || bits[u.ClassId] == 0 {
			return rates, false, nil
		}
		rates[netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, key.Val)))] = bits[u.ClassId] / 8
		delete(bits, u.ClassId)
	}
	return rates, whole && len(bits) == 0, nil
}
