package nfs

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/nearmetal/nearmetal/internal/diskserver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// diskPort is NBD's, as IANA assigned it.
const diskPort = 10809

// treesOf are the volumes that are file systems.
func treesOf(all []volume.Share) []volume.Share {
	return slices.DeleteFunc(slices.Clone(all), func(v volume.Share) bool { return v.Block })
}

// Socket implements volume.Sharer.
func (s *Sharer) Socket(uid, clusterUID string) string {
	return diskserver.Socket(s.reachedDisk(uid, clusterUID))
}

func (s *Sharer) reachedDisk(uid, cluster string) string {
	return filepath.Join(s.dir(cluster, nameReachedDisks), uid)
}

// serveDisks brings which block volumes clients of this node have to what is wanted. Who is shut out has lost its connections when this returns.
func (s *Sharer) serveDisks(ctx context.Context, space netns.Handle, want volume.Sharing) error {
	sockets := map[string]string{}
	for _, v := range want.Serves {
		if v.Block {
			sockets[v.UID] = s.cfg.Socket(v.UID, want.ClusterUID)
		}
	}
	dir := s.dir(want.ClusterUID, nameServedDisks)
	if len(sockets) == 0 {
		return diskserver.End(ctx, dir)
	}
	return diskserver.Share{
		Program: s.cfg.Program, Dir: dir, UserIDs: want.UserIDs, Space: space, Listen: netip.AddrPortFrom(fabric.Inside(s.cfg.Underlay), diskPort),
		Clients: inside(want.Clients), Sockets: sockets,
	}.Ensure(ctx)
}

// reachDisks brings what this node has of other nodes' block volumes to what is wanted.
func (s *Sharer) reachDisks(ctx context.Context, space netns.Handle, want volume.Sharing) error {
	there, err := s.disksThere(want.ClusterUID)
	if err != nil {
		return err
	}
	var errs []error
	for _, uid := range there {
		if !slices.ContainsFunc(want.Reaches, func(r volume.Remote) bool { return r.UID == uid }) {
			errs = append(errs, diskserver.End(ctx, s.reachedDisk(uid, want.ClusterUID)))
		}
	}
	for _, r := range want.Reaches {
		if !r.Block || !r.Server.IsValid() {
			continue
		}
		errs = append(errs, diskserver.Reach{
			Program: s.cfg.Program, Dir: s.reachedDisk(r.UID, want.ClusterUID), UserIDs: want.UserIDs, Space: space,
			Server: netip.AddrPortFrom(fabric.Inside(r.Server), diskPort), Disk: r.UID,
		}.Ensure(ctx))
	}
	return errors.Join(errs...)
}

// disksThere are the block volumes of other nodes of which something is on this node.
func (s *Sharer) disksThere(cluster string) (uids []string, err error) {
	there, err := os.ReadDir(s.dir(cluster, nameReachedDisks))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range there {
		uids = append(uids, e.Name())
	}
	return uids, nil
}

// disksReached are those that machines of this node can connect to.
func (s *Sharer) disksReached(cluster string) (uids []string, err error) {
	there, err := s.disksThere(cluster)
	if err != nil {
		return nil, err
	}
	for _, uid := range there {
		runs, err := diskserver.Runs(s.reachedDisk(uid, cluster))
		if err != nil {
			return nil, err
		}
		if runs {
			uids = append(uids, uid)
		}
	}
	return uids, nil
}

// endDisks takes all block volumes of a cluster away.
func (s *Sharer) endDisks(ctx context.Context, cluster string) error {
	there, err := s.disksThere(cluster)
	for _, uid := range there {
		err = errors.Join(err, diskserver.End(ctx, s.reachedDisk(uid, cluster)))
	}
	return errors.Join(err, diskserver.End(ctx, s.dir(cluster, nameServedDisks)))
}
