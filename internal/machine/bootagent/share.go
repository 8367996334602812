package bootagent

import (
	"context"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
)

// shareEvery is how often the server hears what this machine gives others.
const shareEvery = 3 * time.Second

// share tells the server what this machine gives others of its root while it fetches it, and learns who else does, until ctx ends. Without an
// answer the root comes from the server, as for a machine that boots alone.
func (a *Agent) share(ctx context.Context) {
	for {
		if shares := a.root.shares(); len(shares) > 0 {
			var told boot.Neighbours
			err := a.calls.post(ctx, boot.SharePath, boot.Sharing{Shares: shares}, &told)
			if isFinal(err) {
				return
			}
			a.root.meet(told.URLs)
		}
		select {
		case <-time.After(shareEvery):
		case <-ctx.Done():
			return
		}
	}
}

// shares is what the processes that serve the root give to other machines.
func (r *root) shares() (all []boot.Share) {
	for _, v := range r.volumes {
		if port := v.server.sharePort(); port > 0 {
			all = append(all, boot.Share{Digest: v.root.Digest, Port: port})
		}
	}
	return all
}

// meet tells them of other machines.
func (r *root) meet(urls map[image.Digest][]string) {
	for _, v := range r.volumes {
		if others := urls[v.root.Digest]; len(others) > 0 {
			v.server.meet(others)
		}
	}
}
