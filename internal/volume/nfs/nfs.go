// Package nfs carries volumes between nodes: file systems by the kernel's NFS server and client, block volumes by NBD (package diskserver).
//
// Each cluster with volumes that cross has a network namespace of its own on each node that takes part (link.go), in which the node serves its volumes
// (package nfsd) and from which it mounts those of others. What is there is read from the kernel: the package remembers nothing. It must never decide
// who may have a volume. Start with Sharer.Apply.
package nfs

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/diskserver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/mounts"
	"github.com/nearmetal/nearmetal/internal/volume/nfsd"
)

// port is NFS's (RFC 5661, section 2.9.1).
const port = 2049

// mountTime bounds one mount: a peer that is away must not keep what it stands before in a queue.
const mountTime = 20 * time.Second

// Config says where things are.
type Config struct {
	// Dir is an absolute path, in which no name is a link.
	Dir string
	// Host is the node's network namespace; Underlay its address there, and UnderlayMTU in bytes what the link that bears it carries.
	Host        netns.Handle
	Underlay    netip.Addr
	UnderlayMTU func(ctx context.Context) (int, error)
	// Encrypts: the host makes what has addresses of the encrypted underlay go through WireGuard only (fabric.Fabric.Seal).
	Encrypts bool
	// SetPeers holds what a link of the calling thread's network namespace sends to addresses to rates in bytes per second, and what it sends to others to
	// none. It is harmless to repeat.
	SetPeers func(link string, rates map[netip.Addr]int64) error
	// Root is where a volume of this node is, with the IDs of its disk. It is mounted there while the volume is attached. Socket is where a block volume
	// is served then (volume.Pool).
	Root   func(uid string) string
	Socket func(uid, cluster string) string
	// Program is the path of the member agent's program, which carries block volumes (package diskserver).
	Program string
	// Attacher makes this node's ports on networks of clusters with whole machines; nil: none are made.
	Attacher fabric.Attacher
}

// Sharer implements volume.Sharer.
type Sharer struct{ cfg Config }

// New returns a Sharer on what an earlier process left.
func New(cfg Config) *Sharer { return &Sharer{cfg: cfg} }

// The names in a cluster's directory. Programs of members, which are other users on the host, get to what is reached by its whole path.
const (
	namePin     = "net"
	nameServed  = "served"
	nameReached = "reached"
	// The directory of the process that shares block volumes, and those of the processes that reach them.
	nameServedDisks  = "disks"
	nameReachedDisks = "reached-disks"
)

func (s *Sharer) dir(cluster, name string) string { return filepath.Join(s.cfg.Dir, cluster, name) }

// Dir implements volume.Sharer.
func (s *Sharer) Dir(uid, clusterUID string) string {
	return filepath.Join(s.dir(clusterUID, nameReached), uid)
}

// Describe implements volume.Sharer.
func (s *Sharer) Describe(context.Context) api.VolumeSharing {
	var d api.VolumeSharing
	if !s.cfg.Underlay.Is4() {
		const why = "the agent was started without --underlay, the address by which other nodes reach this one"
		return api.VolumeSharing{ServeProblem: why, ReachProblem: why}
	}
	d.Blocks, d.Encrypts, d.Machines = true, s.cfg.Encrypts, s.cfg.Attacher != nil
	if !hasFileSystem("nfsd") {
		d.ServeProblem = "its kernel has no NFS server; load the module nfsd"
	}
	if !hasFileSystem("nfs4") {
		d.ReachProblem = "its kernel has no NFS client; load the module nfsv4"
	}
	return d
}

// hasFileSystem reports whether the kernel has a kind of file system, which it loads if it is a module.
func hasFileSystem(kind string) bool {
	fd, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	return unix.Close(fd) == nil
}

// Apply implements volume.Sharer.
func (s *Sharer) Apply(ctx context.Context, want volume.Sharing) error {
	mtu, err := s.cfg.UnderlayMTU(ctx)
	if err != nil {
		return err
	}
	if want.Encrypted && !s.cfg.Encrypts {
		return errors.New("the site encrypts its underlay, and this node's kernel has no WireGuard: load its module (modprobe wireguard) and restart the agent")
	}
	if err := os.MkdirAll(filepath.Join(s.cfg.Dir, want.ClusterUID), 0o711); err != nil {
		return err
	}
	w := s.wayOf(want, mtu)
	space, err := w.ensure(want.AllPeers())
	if err != nil {
		return err
	}
	defer func() { _ = space.Close() }()
	if want.Encrypted {
		err = w.checkSeal()
	}
	if on := s.attach(ctx, want); on != nil {
		err = errors.Join(err, on)
		want.Port = nil // who is let in there stays so
	}
	// Each shuts out who is not a client, whatever becomes of the other.
	return errors.Join(err, s.serve(ctx, space, want), s.serveDisks(ctx, space, want), s.limit(space, want), s.reach(ctx, space, want), s.reachDisks(ctx, space, want))
}

// attach puts the server on the cluster's own network, where members with whole machines are, or takes it off. Isolation rules of that network hold
// for it as for members.
func (s *Sharer) attach(ctx context.Context, want volume.Sharing) error {
	if s.cfg.Attacher == nil {
		if want.Port != nil {
			return errors.New("this node has no port on the cluster's network: its agent makes none")
		}
		return nil
	}
	if want.Port == nil {
		return s.cfg.Attacher.Detach(ctx, volume.PortID(want.ClusterUID))
	}
	port := fabric.Port{ID: want.Port.ID, Address: want.Port.Address, MAC: want.Port.MAC, Interface: volume.PortInterface}
	if err := s.cfg.Attacher.Attach(ctx, port, fabric.Namespace(s.dir(want.ClusterUID, namePin))); err != nil {
		return fmt.Errorf("the cluster's whole machines don't reach its volumes: %w", err)
	}
	return nil
}

// limit bounds what this node sends to its peers and to machines. What machines send to it is not bounded.
func (s *Sharer) limit(space netns.Handle, want volume.Sharing) error {
	rates, toMachines := map[netip.Addr]int64{}, map[netip.Addr]int64{}
	for _, r := range want.Rates {
		if slices.Contains(want.Machines, r.Peer) {
			toMachines[r.Peer] = r.BytesPerSecond
		} else {
			rates[fabric.Inside(r.Peer)] = r.BytesPerSecond
		}
	}
	err := space.Do(func() error { return s.cfg.SetPeers(tunnelName, rates) })
	if want.Port != nil && len(want.Machines) > 0 {
		err = errors.Join(err, space.Do(func() error { return s.cfg.SetPeers(volume.PortInterface, toMachines) }))
	}
	if err != nil {
		return fmt.Errorf("the limits of I/O of volumes are not in force between nodes: %w", err)
	}
	return nil
}

// wayOf is the way that is wanted, over an underlay of this MTU. What nobody names any more has no user IDs: it is without peers, and a tunnel that is
// not there is made so that it sends nothing.
func (s *Sharer) wayOf(want volume.Sharing, mtu int) way {
	w := s.way(want.ClusterUID)
	w.kept = want.UserIDs == (api.IDRange{})
	w.mtu, w.vni, w.sealed = mtu, want.VNI(), want.Encrypted || w.kept
	return w
}

func (s *Sharer) way(cluster string) way {
	return way{pin: s.dir(cluster, namePin), host: s.cfg.Host, underlay: s.cfg.Underlay}
}

// serve brings what clients of this node have to what is wanted.
func (s *Sharer) serve(ctx context.Context, space netns.Handle, want volume.Sharing) error {
	cfg := s.serverConfig(space, want.ClusterUID, want.UserIDs)
	trees := treesOf(want.Serves)
	if len(trees) == 0 {
		return nfsd.Found(cfg).Stop(ctx)
	}
	server, err := nfsd.Start(ctx, cfg)
	if err != nil {
		return err
	}
	if want.Port != nil && len(want.Machines) > 0 {
		if err := server.ListenToMachines(ctx, netip.AddrPortFrom(want.Port.Address, port)); err != nil {
			return err
		}
	}
	clients := append(inside(want.Clients), want.Machines...)
	if err := s.fence(ctx, server, clients); err != nil {
		return err
	}
	shares, err := server.Shares()
	if err != nil {
		return err
	}
	// What a client has open of a volume can't be taken away alone. Clients wait for the server that starts anew.
	if slices.ContainsFunc(shares, func(uid string) bool {
		return !slices.ContainsFunc(trees, func(v volume.Share) bool { return v.UID == uid })
	}) {
		if err := server.Stop(ctx); err != nil {
			return err
		}
		if server, err = nfsd.Start(ctx, cfg); err != nil {
			return err
		}
	}
	for _, v := range trees {
		if err := server.Share(nfsd.Share{Name: v.UID, Number: numberOf(v.UID), Dir: s.cfg.Root(v.UID), ReadOnly: v.ReadOnly}); err != nil {
			return err
		}
	}
	for _, c := range clients {
		if err := server.Admit(c); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sharer) serverConfig(space netns.Handle, cluster string, ids api.IDRange) nfsd.Config {
	return nfsd.Config{Space: space, Address: netip.AddrPortFrom(fabric.Inside(s.cfg.Underlay), port), Dir: s.dir(cluster, nameServed), UserIDs: ids}
}

// fence shuts out all who are let in and are not among clients.
func (s *Sharer) fence(ctx context.Context, server *nfsd.Server, clients []netip.Addr) error {
	in, err := server.Clients()
	if err != nil {
		return err
	}
	for _, c := range in {
		if slices.Contains(clients, c) {
			continue
		}
		if err := server.Fence(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// inside are the addresses of nodes within the tunnel.
func inside(nodes []netip.Addr) []netip.Addr {
	var all []netip.Addr
	for _, n := range nodes {
		all = append(all, fabric.Inside(n))
	}
	return all
}

// numberOf is by which number clients know a volume's file system, also after the server has started anew.
func numberOf(uid string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(uid))
	return int(h.Sum32()>>1) | 1
}

// reach brings what this node has of other nodes' volumes to what is wanted. Each is tried, whatever happens to the others.
func (s *Sharer) reach(ctx context.Context, space netns.Handle, want volume.Sharing) error {
	there, err := s.reached(want.ClusterUID)
	if err != nil {
		return err
	}
	var errs []error
	for _, uid := range there {
		if !slices.ContainsFunc(want.Reaches, func(r volume.Remote) bool { return r.UID == uid && !r.Block }) {
			errs = append(errs, s.leave(ctx, uid, want.ClusterUID))
		}
	}
	for _, r := range want.Reaches {
		if r.Block || !r.Server.IsValid() {
			continue
		}
		m := nfsd.Mount{
			Server: netip.AddrPortFrom(fabric.Inside(r.Server), port), Own: fabric.Inside(s.cfg.Underlay), Name: r.UID, Dir: s.Dir(r.UID, want.ClusterUID), ReadOnly: r.ReadOnly,
		}
		if err := os.MkdirAll(filepath.Dir(m.Dir), 0o711); err != nil {
			return err
		}
		bounded, cancel := context.WithTimeout(ctx, mountTime)
		errs = append(errs, space.Do(func() error { return m.Attach(bounded) }))
		cancel()
	}
	return errors.Join(errs...)
}

// unmountTime bounds one unmount: it waits for a server that is gone.
const unmountTime = 20 * time.Second

func (s *Sharer) leave(ctx context.Context, uid, cluster string) error {
	ctx, cancel := context.WithTimeout(ctx, unmountTime)
	defer cancel()
	return nfsd.Mount{Name: uid, Dir: s.Dir(uid, cluster)}.Detach(ctx)
}

// reached are the volumes of other nodes that are mounted here.
func (s *Sharer) reached(cluster string) ([]string, error) {
	below, err := mounts.Below(s.dir(cluster, nameReached))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, m := range below {
		all = append(all, filepath.Base(m.Path))
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Observe implements volume.Sharer.
func (s *Sharer) Observe(ctx context.Context) ([]volume.SharingState, error) {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []volume.SharingState
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		one, err := s.state(e.Name())
		if err != nil {
			return nil, fmt.Errorf("volumes of cluster %s on other nodes: %w", e.Name(), err)
		}
		all = append(all, one)
	}
	return all, nil
}

func (s *Sharer) state(cluster string) (volume.SharingState, error) {
	one := volume.SharingState{ClusterUID: cluster}
	var err error
	if one.Reaches, err = s.reached(cluster); err != nil {
		return one, err
	}
	disks, err := s.disksReached(cluster)
	if err != nil {
		return one, err
	}
	one.Reaches = append(one.Reaches, disks...)
	slices.Sort(one.Reaches)
	space, err := s.way(cluster).open()
	if errors.Is(err, fs.ErrNotExist) {
		return one, nil // it is being made, or the host was started anew
	}
	if err != nil {
		return one, err
	}
	defer func() { _ = space.Close() }()
	served, clients, err := s.served(space, cluster)
	one.Serves = served
	if err != nil || len(clients) == 0 {
		return one, err
	}
	peers, err := peersIn(space)
	for _, c := range clients {
		if at, ok := peers[c]; ok { // else nobody knows any more which node it was
			c = at
		}
		one.Clients = append(one.Clients, c)
	}
	slices.SortFunc(one.Clients, netip.Addr.Compare)
	return one, err
}

// served are the volumes that clients see of this node, and who is let in, by addresses within the tunnel.
func (s *Sharer) served(space netns.Handle, cluster string) (uids []string, clients []netip.Addr, err error) {
	disks, err := diskserver.FoundShare(s.dir(cluster, nameServedDisks))
	if err != nil {
		return nil, nil, err
	}
	server := nfsd.Found(s.serverConfig(space, cluster, api.IDRange{}))
	trees, err := server.Shares()
	if err != nil {
		return nil, nil, err
	}
	clients = disks.Clients
	if len(trees) > 0 {
		in, err := server.Clients()
		if err != nil {
			return nil, nil, err
		}
		clients = append(clients, in...)
	}
	uids = append(trees, disks.Disks...)
	slices.Sort(uids)
	slices.SortFunc(clients, netip.Addr.Compare)
	return uids, slices.Compact(clients), nil
}

// End implements volume.Sharer.
func (s *Sharer) End(ctx context.Context, cluster string) error {
	if err := s.endDisks(ctx, cluster); err != nil {
		return err
	}
	there, err := os.ReadDir(s.dir(cluster, nameReached)) // where something is mounted, or was before the host was started anew
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = nil
	for _, e := range there {
		err = errors.Join(err, s.leave(ctx, e.Name(), cluster))
	}
	if s.cfg.Attacher != nil {
		err = errors.Join(err, s.cfg.Attacher.Detach(ctx, volume.PortID(cluster)))
	}
	w := s.way(cluster)
	if space, more := w.open(); more == nil {
		err = errors.Join(err, nfsd.Found(s.serverConfig(space, cluster, api.IDRange{})).Stop(ctx), space.Close())
	} else if errors.Is(more, fs.ErrNotExist) {
		err = errors.Join(err, nfsd.Remove(ctx, s.dir(cluster, nameServed)))
	} else {
		err = errors.Join(err, more)
	}
	if err != nil {
		return err
	}
	if err := w.remove(); err != nil {
		return err
	}
	for _, dir := range []string{s.dir(cluster, nameServed), s.dir(cluster, nameReached), s.dir(cluster, nameReachedDisks), filepath.Join(s.cfg.Dir, cluster)} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
