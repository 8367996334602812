package nodeimages

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/internal/image"
)

func TestAPeerThatWasDroppedIsNotAskedAgainWhoeverNamesIt(t *testing.T) {
	s := &Store{cfg: Config{Log: slog.New(slog.DiscardHandler), Changed: func() {}}}
	f := newFetch(s, Wanted{Peers: []string{"http://bad/", "http://good/"}})
	f.drop("http://bad/", image.ErrDigest)
	f.setPeers([]string{"http://bad/", "http://good/", "http://other/"})
	if got := f.livePeers(); !slices.Equal(got, []string{"http://good/", "http://other/"}) {
		t.Errorf("asked are %q", got)
	}
}
