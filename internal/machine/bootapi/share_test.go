package bootapi

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
)

func TestMachinesThatFetchTheSameAreToldOfEachOther(t *testing.T) {
	s := shares{by: map[image.Digest]map[string]shared{}}
	now := time.Unix(1000, 0)
	one, other := image.DigestOf([]byte("one")), image.DigestOf([]byte("other"))
	tell := func(uid int, port int, digests ...image.Digest) map[image.Digest][]string {
		var list []boot.Share
		for _, d := range digests {
			list = append(list, boot.Share{Digest: d, Port: port})
		}
		return s.tell(fmt.Sprint(uid), netip.AddrFrom4([4]byte{10, 77, 1, byte(uid)}), list, now)
	}
	if got := tell(1, 4001, one); len(got[one]) != 0 {
		t.Errorf("alone it is told of %v", got)
	}
	if got := tell(2, 4002, one, other); !slices.Equal(got[one], []string{"http://10.77.1.1:4001/"}) || len(got[other]) != 0 {
		t.Errorf("the second is told of %v", got)
	}
	if got := tell(1, 4003, one); !slices.Equal(got[one], []string{"http://10.77.1.2:4002/"}) {
		t.Errorf("the first is told of %v", got)
	}
	if got := tell(3, 4004, one); !slices.Contains(got[one], "http://10.77.1.1:4003/") || len(got[one]) != 2 {
		t.Errorf("after the first serves elsewhere the third is told of %v", got)
	}
	if tell(2, 4002, one); len(s.by[other]) != 0 {
		t.Error("what a machine gives no longer is remembered as its")
	}
	for uid := 10; uid < 30; uid++ {
		if got := tell(uid, 4000, one); len(got[one]) > maxNeighbours {
			t.Fatalf("%d at once are named", len(got[one]))
		}
	}
	now = now.Add(shareLife + time.Second)
	if got := tell(2, 4002, one); len(got[one]) != 0 {
		t.Errorf("%v were silent for longer than %s", got[one], shareLife)
	}
	if len(s.by) != 1 {
		t.Errorf("%d roots are remembered, one is given", len(s.by))
	}
}
