package agent

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/nodeimages"
)

// Images holds the built environments of a node. *nodeimages.Store implements it.
type Images interface {
	// Run fetches what is wanted until ctx ends.
	Run(ctx context.Context)
	// Want takes the whole list of what the node should hold, and the key that it is signed with.
	Want(key []byte, images []nodeimages.Wanted)
	Status() []nodeimages.Status
	// Whole reports whether an image can be used, and if not, how far it is.
	Whole(digest string) (ok bool, why string)
}

// wantImages passes on what the leader wants the node to hold.
func (a *Agent) wantImages(d *agentstream.Desired) {
	if a.cfg.Images == nil {
		return
	}
	wanted := make([]nodeimages.Wanted, 0, len(d.Images))
	for _, i := range d.Images {
		wanted = append(wanted, nodeimages.Wanted{Digest: i.Digest, Signature: i.Signature, Peers: i.Peers})
	}
	a.cfg.Images.Want(d.ImageKey, wanted)
}

// imageReady reports whether the image a member stands on is here. Waiting for it costs the member no attempt: that its image comes wakes the
// loop.
func (a *Agent) imageReady(m *memberState) bool {
	digest := m.want.Assignment.EnvironmentDigest
	switch {
	case digest == "":
		return true
	case a.cfg.Images == nil:
		m.message = fmt.Sprintf("this node can't run environment %q: its agent keeps no images", m.want.Assignment.Environment)
		return false
	}
	ok, why := a.cfg.Images.Whole(digest)
	if !ok {
		m.message = fmt.Sprintf("environment %q: %s", m.want.Assignment.Environment, why)
	}
	return ok
}

func (a *Agent) observedImages() []agentstream.ImageObserved {
	if a.cfg.Images == nil {
		return nil
	}
	var list []agentstream.ImageObserved
	for _, s := range a.cfg.Images.Status() {
		list = append(list, agentstream.ImageObserved(s))
	}
	return list
}
