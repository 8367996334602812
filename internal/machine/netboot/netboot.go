// Package netboot answers machines that boot over the network: DHCP or ProxyDHCP, TFTP, HTTP, and an iPXE script for each machine.
//
// What to answer is a Table, computed by the leader from what is stored and handed over whole; the parts (dhcp, tftp, http, ipxe)
// answer from it and report what they saw as Events. They never decide what a machine boots, and never import the store. Start with Table.
package netboot

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
)

// Table is everything network boot answers from. It is immutable.
type Table struct {
	// Term and Revision order tables: an older one never replaces a newer one.
	Term, Revision int64
	// Machines are the known ones, by each of their MACs (lower-case, colons).
	Machines map[string]*Machine
	// Stranger is what unknown machines boot; nil: they are not answered.
	Stranger *Boot
	// Rate bounds the bytes per second of all boot traffic together; 0: the measured capacity of the uplink.
	RateBytesPerSecond int64
}

// Machine is a known machine.
type Machine struct {
	Name    string
	MAC     string
	Address netip.Addr
	// Boot is nil for a machine that is not meant to boot: it gets an address and a script that ends its network boot cleanly.
	Boot *Boot
	// Waits: one without a Boot is about to be given one, and asks again until then. It was running, and its firmware has begun anew.
	Waits bool
}

// Boot is what one machine boots now.
type Boot struct {
	Machine    string // UID; empty for strangers
	Generation int64
	Purpose    api.BootPurpose
	Manifest   image.Digest
	Kernel     image.Digest
	Initrd     image.Digest
	// Agent is the initrd with the boot agent, loaded behind Initrd; empty: that one has it.
	Agent image.Digest
	// Arguments are the kernel's, without those of boot.Arguments, which the script adds per machine.
	Arguments    string
	Architecture string
	// ExpiresAt ends its boot token.
	ExpiresAt time.Time
}

// Network is where network boot serves.
type Network struct {
	Interface string
	// Address is the server's on it, with the prefix.
	Address netip.Prefix
	// Proxy: another server gives addresses; this one only tells what to boot (PXE 2.1, ProxyDHCP).
	Proxy bool
	// Machines and Strangers are the ranges addresses are taken from; unused with Proxy.
	Machines, Strangers Range
	// Router and Nameservers are told to clients; may be empty.
	Router      netip.Addr
	Nameservers []netip.Addr
	// HTTPPort serves scripts, kernels and images.
	HTTPPort int
}

// Range is addresses From to To, both included.
type Range struct{ From, To netip.Addr }

// Event is something seen of a booting machine.
type Event struct {
	MAC net.HardwareAddr
	// Generation is of the boot it belongs to, 0 for a stranger or a machine that is not meant to boot.
	Generation   int64
	Stage        api.BootStage // the stage that ended with it; "" for others
	At           time.Time
	Firmware     api.Firmware
	Architecture string
	Bytes        int64
	// Problem is for operators: another DHCP server, an exhausted range, a refused boot.
	Problem string
}

// Sink takes events; it must not block.
type Sink func(Event)

// Leases keeps strangers' addresses. Keep stores a lease and returns when it is durable; it is called before the address is offered.
type Leases interface {
	All() []api.Lease
	Keep(ctx context.Context, lease api.Lease) error
	Drop(ctx context.Context, mac string) error
}

// Blobs gives the content of kernels, initrds and images.
type Blobs interface {
	// Open returns content and size; the error is fs.ErrNotExist when there is none.
	Open(digest image.Digest) (Blob, error)
}

// Blob is open content; safe for concurrent ReadAt.
type Blob interface {
	ReadAt(p []byte, off int64) (int, error)
	Size() int64
	Close() error
}

// Tokens makes the boot token for a machine's boot; port is where its DHCP request came in.
type Tokens func(mac string, boot *Boot, port string) string
