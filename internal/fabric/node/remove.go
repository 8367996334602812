package node

import (
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// doomedGroup is the link group ("nmx" and a zero) of links about to be deleted. The kernel deletes a group at the cost of one
// link, which is tens of milliseconds of waiting for RCU grace periods.
const doomedGroup = 0x6e6d7800

// deleteLinks deletes all these links in one go; those that are gone are no error.
func deleteLinks(names []string) error {
	var doomed []string
	for _, name := range names {
		link, err := netlink.LinkByName(name)
		if isGone(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("finding link %s: %w", name, err)
		}
		if err := netlink.LinkSetGroup(link, doomedGroup); err != nil && !isGone(err) {
			return fmt.Errorf("marking link %s for deletion: %w", name, err)
		}
		doomed = append(doomed, name)
	}
	if len(doomed) == 0 {
		return nil
	}
	if err := deleteDoomed(doomed); err != nil && !isGone(err) {
		return fmt.Errorf("deleting links %v: %w", names, err)
	}
	return nil
}

// deleteDoomed deletes the doomed group and returns once none of its links can be found. The kernel answers such a request only when it has
// waited for RCU callbacks as well, about as long again, which frees memory and which nobody has to wait for.
func deleteDoomed(names []string) error {
	news, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return err
	}
	defer news.Close()
	request, err := nl.Subscribe(unix.NETLINK_ROUTE) // of this thread's namespace, though another thread sends on it
	if err != nil {
		return err
	}
	changed, answered := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		for {
			if _, _, err := news.Receive(); err != nil {
				return // closed, or news was lost: the answer still comes
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	go func() {
		defer request.Close()
		req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: request}}
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(doomedGroup)))
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		answered <- err
	}()
	for {
		select {
		case err := <-answered:
			return err
		case <-changed:
			if noneFound(names) {
				return nil
			}
		}
	}
}

// noneFound reports whether all these links are known to be gone.
func noneFound(names []string) bool {
	for _, name := range names {
		if _, err := netlink.LinkByName(name); !isGone(err) {
			return false
		}
	}
	return true
}

// linkRemover gathers the links that are to be removed while a removal is under way and removes them together next, as a
// database gathers commits.
type linkRemover struct {
	mu      sync.Mutex // held while links are removed
	next    sync.Mutex // guards pending
	pending *removal
}

// removal is one removal to come.
type removal struct {
	names []string
	done  bool
	err   error
}

// remove returns when the link is gone.
func (r *linkRemover) remove(node netns.Handle, name string) error {
	r.next.Lock()
	if r.pending == nil {
		r.pending = &removal{}
	}
	mine := r.pending
	mine.names = append(mine.names, name)
	r.next.Unlock()

	r.mu.Lock()
	defer r.mu.Unlock()
	if mine.done {
		return mine.err
	}
	r.next.Lock()
	r.pending = nil
	r.next.Unlock()
	mine.err = node.Do(func() error { return deleteLinks(mine.names) })
	mine.done = true
	if mine.err != nil && len(mine.names) > 1 {
		return fmt.Errorf("together with %d others: %w", len(mine.names)-1, mine.err)
	}
	return mine.err
}

// isGone reports whether the link that was asked for does not exist.
func isGone(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENODEV)
}
