package apiserver_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func TestAnIPv6SubnetIsRefusedWithTheReason(t *testing.T) {
	s := twoProjects(t)
	eve := s.ClientAs("eve", "lab", api.RoleMember)
	const taken = "fd12:3456:789a:1::/64"
	made, err := s.Client().CreateNetwork(t.Context(), api.NetworkRequest{Name: "six", Prefix6: taken})
	if err != nil || made.Prefix6.String() != taken {
		t.Fatalf("created %+v, %v", made, err)
	}
	for prefix, want := range map[string]string{
		"fd12:3456:789a::":       "is not a prefix: give one such as fd12:3456:789a:1::/64",
		"fd12:3456:789a:1::1/64": "has bits beyond its length: give fd12:3456:789a:1::/64",
		"fd12:3456:789a::/48":    "has length /48: give one of length /64",
		"2001:db8::/64":          "is neither in fd00::/8",
		"10.64.128.0/24":         "is not an IPv6 prefix",
	} {
		_, err := s.Client().CreateNetwork(t.Context(), api.NetworkRequest{Name: "n", Prefix6: prefix})
		if !client.HasCode(err, "invalid_request") || !strings.Contains(fmt.Sprintf("%+v", err), want) {
			t.Errorf("prefix %s: %v; want %q", prefix, err, want)
		}
	}
	if _, err := s.Client().CreateNetwork(t.Context(), api.NetworkRequest{Name: "n", Prefix6: taken}); !client.HasCode(err, "subnet_taken") || !strings.Contains(err.Error(), "project/six") {
		t.Errorf("a subnet that is taken: %v", err)
	}
	if _, err := eve.CreateNetwork(t.Context(), api.NetworkRequest{Name: "n", Prefix6: taken}); !client.HasCode(err, "subnet_taken") || strings.Contains(err.Error(), "six") {
		t.Errorf("another project's network is named: %v", err)
	}
	if all, err := s.Client().Networks(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("after refusals there are %+v, %v", all, err)
	}
}
