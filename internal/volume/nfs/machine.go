package nfs

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/mounts"
	"github.com/nearmetal/nearmetal/internal/volume/nfsd"
)

// Machine implements volume.Sharer on a machine that is a member: it reaches volumes over the cluster's own network, and serves none.
type Machine struct {
	// dir is an absolute path, in which no name is a link.
	dir string
}

// NewMachine returns the Sharer of a machine that is a member.
func NewMachine(dir string) *Machine { return &Machine{dir: dir} }

// Dir implements volume.Sharer.
func (m *Machine) Dir(uid, clusterUID string) string { return filepath.Join(m.dir, clusterUID, uid) }

// Socket implements volume.Sharer: the machine has no block volumes.
func (m *Machine) Socket(string, string) string { return "" }

// Describe implements volume.Sharer.
func (m *Machine) Describe(context.Context) api.VolumeSharing {
	d := api.VolumeSharing{ServeProblem: "it is a member's, who may do with it as they like"}
	if !hasFileSystem("nfs4") {
		d.ReachProblem = "its kernel has no NFS client; the environment needs the module nfsv4"
	}
	return d
}

// Apply implements volume.Sharer. Each volume is tried, whatever happens to the others.
func (m *Machine) Apply(ctx context.Context, want volume.Sharing) error {
	there, err := m.reached(want.ClusterUID)
	if err != nil {
		return err
	}
	var errs []error
	for _, uid := range there {
		if !slices.ContainsFunc(want.Reaches, func(r volume.Remote) bool { return r.UID == uid }) {
			errs = append(errs, m.leave(ctx, uid, want.ClusterUID))
		}
	}
	for _, r := range want.Reaches {
		if r.Server.IsValid() {
			errs = append(errs, m.attach(ctx, r, want.ClusterUID))
		}
	}
	return errors.Join(errs...)
}

func (m *Machine) attach(ctx context.Context, r volume.Remote, cluster string) error {
	if r.Block {
		return errors.New("a whole machine has no block volumes")
	}
	server := netip.AddrPortFrom(r.Server, port)
	own, err := addressTo(server)
	if err != nil {
		return err
	}
	at := nfsd.Mount{Server: server, Own: own, Name: r.UID, Dir: m.Dir(r.UID, cluster), ReadOnly: r.ReadOnly}
	if err := os.MkdirAll(filepath.Dir(at.Dir), 0o711); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, mountTime)
	defer cancel()
	return at.Attach(ctx)
}

// addressTo is this machine's address on the way to a server. Nothing is sent.
func addressTo(server netip.AddrPort) (netip.Addr, error) {
	conn, err := net.Dial("udp", server.String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer func() { _ = conn.Close() }()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

func (m *Machine) leave(ctx context.Context, uid, cluster string) error {
	ctx, cancel := context.WithTimeout(ctx, unmountTime)
	defer cancel()
	return nfsd.Mount{Name: uid, Dir: m.Dir(uid, cluster)}.Detach(ctx)
}

// reached are the volumes that are mounted.
func (m *Machine) reached(cluster string) ([]string, error) {
	below, err := mounts.Below(filepath.Join(m.dir, cluster))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, at := range below {
		all = append(all, filepath.Base(at.Path))
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Observe implements volume.Sharer.
func (m *Machine) Observe(ctx context.Context) ([]volume.SharingState, error) {
	entries, err := os.ReadDir(m.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var all []volume.SharingState
	for _, e := range entries {
		uids, err := m.reached(e.Name())
		if err != nil {
			return nil, err
		}
		all = append(all, volume.SharingState{ClusterUID: e.Name(), Reaches: uids})
	}
	return all, ctx.Err()
}

// End implements volume.Sharer.
func (m *Machine) End(ctx context.Context, cluster string) error {
	entries, err := os.ReadDir(filepath.Join(m.dir, cluster))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	err = nil
	for _, e := range entries {
		err = errors.Join(err, m.leave(ctx, e.Name(), cluster))
	}
	if err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(m.dir, cluster)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
