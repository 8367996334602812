package bootapi

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
)

const (
	// shareLife is how long a machine counts as one that gives something after it said so; it says it every few seconds.
	shareLife = 15 * time.Second
	// maxShares bounds the roots and layers of one machine, maxNeighbours whom one is told of.
	maxShares     = 32
	maxNeighbours = 8
)

// shares is who gives what to others, in memory: after a restart it is told again.
type shares struct {
	mu sync.Mutex
	by map[image.Digest]map[string]shared // by machine UID
}

type shared struct {
	url string
	at  time.Time
}

// tell takes down what a machine gives, and returns who else gives of the same: some, chosen anew each time, so that all know of all in time.
func (s *shares) tell(uid string, address netip.Addr, list []boot.Share, now time.Time) map[image.Digest][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Who has not said for a while that it gives something is dropped; and what this one says is all it gives: whatever else a machine made up
	// would stay for a while, and be handed out.
	for digest, by := range s.by {
		maps.DeleteFunc(by, func(other string, given shared) bool { return other == uid || now.Sub(given.at) > shareLife })
		if len(by) == 0 {
			delete(s.by, digest)
		}
	}
	others := map[image.Digest][]string{}
	for _, share := range list {
		by := s.by[share.Digest]
		if by == nil {
			by = map[string]shared{}
			s.by[share.Digest] = by
		}
		by[uid] = shared{fmt.Sprintf("http://%s/", netip.AddrPortFrom(address, uint16(share.Port))), now}
		var urls []string
		for other, given := range by {
			if other != uid {
				urls = append(urls, given.url)
			}
		}
		rand.Shuffle(len(urls), func(i, j int) { urls[i], urls[j] = urls[j], urls[i] })
		others[share.Digest] = urls[:min(len(urls), maxNeighbours)]
	}
	return others
}

// share tells machines that fetch an image at the same time of each other.
func (s *Server) share(w http.ResponseWriter, r *http.Request) {
	claims, err := s.session(r)
	if err != nil {
		s.answer(w, r, nil, err)
		return
	}
	sharing, err := read[boot.Sharing](w, r, maxStageBytes)
	from, badAddress := netip.ParseAddrPort(r.RemoteAddr)
	bad := func(one boot.Share) bool { return one.Port < 1 || one.Port > 65535 || one.Digest.Check() != nil }
	switch m := s.cfg.Reader.View().MachineByUID(claims.Machine); {
	case err != nil:
	case len(sharing.Shares) > maxShares || slices.ContainsFunc(sharing.Shares, bad) || badAddress != nil:
		err = refuse(http.StatusBadRequest, "at most %d roots and layers can be shared, each with its digest and a port", maxShares)
	case m == nil || m.Record == nil || m.Record.Boot == nil || m.Record.Boot.Generation != claims.Generation:
		err = refuse(http.StatusGone, "this boot has ended")
	}
	if err != nil {
		s.answer(w, r, nil, err)
		return
	}
	others := s.shares.tell(claims.Machine, from.Addr().Unmap(), sharing.Shares, s.cfg.SiteTime())
	s.answer(w, r, boot.Neighbours{URLs: others}, nil)
}
