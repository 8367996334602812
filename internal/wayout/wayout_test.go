package wayout

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestForwardingIsSwitchedForSitesAloneAndOffOnlyWhenNobodyElseMayUseIt(t *testing.T) {
	for name, tt := range map[string]struct {
		seen          Seen
		switched, off []string // off when the site ends
	}{
		"nobody forwards":                         {Seen{Uplinks: []string{"up0"}}, []string{"up0"}, nil},
		"it was on before":                        {Seen{Uplinks: []string{"up0"}, Forwarding: []string{"up0"}}, nil, nil},
		"this site switched it on":                {Seen{Uplinks: []string{"up0"}, Forwarding: []string{"up0"}, Own: []string{"up0"}}, []string{"up0"}, []string{"up0"}},
		"another site did":                        {Seen{Uplinks: []string{"up0"}, Forwarding: []string{"up0"}, Others: []string{"up0"}}, []string{"up0"}, nil},
		"both need it":                            {Seen{Uplinks: []string{"up0"}, Forwarding: []string{"up0"}, Own: []string{"up0"}, Others: []string{"up0"}}, []string{"up0"}, nil},
		"somebody made the machine a router":      {Seen{Uplinks: []string{"up0"}, Forwarding: []string{"up0"}, Own: []string{"up0"}, Router: true}, nil, nil},
		"another link forwards":                   {Seen{Uplinks: []string{"up0"}, Forwarding: []string{"br0", "up0"}, Own: []string{"up0"}}, []string{"up0"}, nil},
		"another uplink forwards":                 {Seen{Uplinks: []string{"up0", "up1"}, Forwarding: []string{"up0", "up1"}, Own: []string{"up0"}}, []string{"up0"}, []string{"up0"}},
		"the way out leads over another link now": {Seen{Uplinks: []string{"up1"}, Forwarding: []string{"up0"}, Own: []string{"up0"}}, []string{"up1"}, []string{"up0"}},
	} {
		if diff := cmp.Diff(tt.switched, tt.seen.Switched()); diff != "" {
			t.Errorf("%s: switched (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(tt.off, tt.seen.Off(nil)); diff != "" {
			t.Errorf("%s: off at the end (-want +got):\n%s", name, diff)
		}
		if off := tt.seen.Off(tt.seen.Uplinks); len(tt.seen.Own) > 0 && tt.seen.Own[0] == tt.seen.Uplinks[0] && off != nil {
			t.Errorf("%s: what is needed is switched off: %v", name, off)
		}
	}
}

const listing = `table inet nm {
	set switched {
		type ifname
		elements = { "up0" }
	}
	chain forward {
		type filter hook forward priority -10; policy accept;
	}
}
table inet nearmetal_0123abcd {
	set switched {
		type ifname
		elements = { "up0",
			     "up1" }
	}
	set same {
		type ifname . ifname
		elements = { "up0" . "up0",
			     "up1" . "up1" }
	}
}
table inet nearmetal_99999999 {
	set switched {
		type ifname
	}
}
table inet stranger {
	set switched {
		type ifname
		elements = { "up7" }
	}
	chain forward {
		type filter hook forward priority 0; policy drop;
	}
	chain input {
		type filter hook input priority 0; policy drop;
	}
}
table ip filter {
	chain FORWARD {
		type filter hook forward priority 0; policy drop;
		counter packets 0 bytes 0 jump DOCKER-USER
	}

	chain DOCKER-USER {
	}
}
`

func TestAListingNamesSitesAndWhoDropsForwardedPackets(t *testing.T) {
	want := Listing{
		Switched: map[string][]string{"inet nm": {"up0"}, "inet nearmetal_0123abcd": {"up0", "up1"}, "inet nearmetal_99999999": nil},
		Drops:    []string{"chain forward of table inet stranger"}, Docker: true,
	}
	got := ParseListing(listing)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"up0", "up1"}, got.Others("inet nm")); diff != "" {
		t.Errorf("other sites' links (-want +got):\n%s", diff)
	}
	noDocker := ParseListing(strings.Replace(listing, "\tchain DOCKER-USER {\n\t}\n", "", 1))
	if diff := cmp.Diff([]string{"chain forward of table inet stranger", "chain FORWARD of table ip filter"}, noDocker.Drops); diff != "" {
		t.Errorf("without Docker (-want +got):\n%s", diff)
	}
}

func TestRulesInDockersChainAreMadeOnceAndFoundAgain(t *testing.T) {
	empty := ParseDocker("table ip filter {\n\tchain DOCKER-USER { # handle 2\n\t}\n}\n", "nmbr*")
	want := `insert rule ip filter DOCKER-USER oifname "nmbr*" counter accept comment "nearmetal nmbr*"
insert rule ip filter DOCKER-USER iifname "nmbr*" counter accept comment "nearmetal nmbr*"
`
	if got := empty.Script("nmbr*", true); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	there := ParseDocker(`table ip filter {
	chain DOCKER-USER { # handle 2
		iifname "nmbr*" counter packets 0 bytes 0 accept comment "nearmetal nmbr*" # handle 7
		oifname "nmbr*" counter packets 9 bytes 8 accept comment "nearmetal nmbr*" # handle 6
		iifname "nmu12345678" counter packets 0 bytes 0 accept comment "nearmetal nmu12345678" # handle 5
		counter packets 0 bytes 0 return # handle 4
	}
}
`, "nmbr*")
	if got := there.Script("nmbr*", true); got != "" {
		t.Errorf("they are there, and there is still to do: %q", got)
	}
	if got, want := there.Script("nmbr*", false), "delete rule ip filter DOCKER-USER handle 7\ndelete rule ip filter DOCKER-USER handle 6\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, wanted := range []bool{true, false} {
		if got := (Docker{}).Script("nmbr*", wanted); got != "" {
			t.Errorf("without Docker: got %q", got)
		}
	}
}
