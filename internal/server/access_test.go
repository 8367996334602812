package server

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/changedfiles"
	"github.com/nearmetal/nearmetal/internal/contextualization"
	"github.com/nearmetal/nearmetal/internal/controller"
	"github.com/nearmetal/nearmetal/internal/member/membercert"
	"github.com/nearmetal/nearmetal/internal/member/mungekey"
	"github.com/nearmetal/nearmetal/internal/sshca"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// Every key that a member gets is found by its content, and every generated file is left out but those that are merged with the image's.
func TestAllKeysOfAMemberAreSearchedFor(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	secret := bytes.Repeat([]byte{7}, 32)
	c := certifier{secrets: trust.Secrets{{Key: secret}}, now: func() time.Time { return at }}
	intent := api.ClusterIntent{Name: "c1", UID: "u1", CreatedAt: at}
	a := api.Assignment{
		ID: "u1.c1-0.1", Cluster: "c1", Group: "c1", Member: "c1-0", Stack: api.StackMetal, Slots: []int{0}, Whole: true,
		Ports: []api.PortClaim{{Address: netip.MustParseAddr("10.64.16.2")}},
	}
	marks, err := c.keysOf(intent, a)
	if err != nil {
		t.Fatal(err)
	}
	logins, err := sshca.New(secret, intent.UID, at)
	if err != nil {
		t.Fatal(err)
	}
	certificates, err := membercert.New(secret, intent.UID)
	if err != nil {
		t.Fatal(err)
	}
	munge, err := mungekey.Derive(secret, intent.UID)
	if err != nil {
		t.Fatal(err)
	}
	r, err := contextualization.New(contextualization.Cluster{
		Name: "c1", Authority: logins, Certificates: certificates, Now: at, User: controller.JobUser, Network: api.Network{Index: 1, Prefix: netip.MustParsePrefix("10.64.16.0/22")},
		Members: []api.Assignment{a}, Slurm: &contextualization.Slurm{MungeKey: munge, Groups: []contextualization.SlurmGroup{{Name: "c1"}}, Controller: "c1-0"},
		UserData: map[string]string{"c1": "#cloud-config"},
	})
	if err != nil {
		t.Fatal(err)
	}
	files, err := r.Files(a.ID)
	if err != nil {
		t.Fatal(err)
	}
	keys := 0
	for _, f := range files {
		if merged := f.Path == "/etc/passwd" || f.Path == "/etc/group"; changedfiles.ForEnvironment.Omitted(strings.TrimPrefix(f.Path, "/"), false) == merged {
			t.Errorf("%s is left out: %v", f.Path, !merged)
		}
		found := slices.ContainsFunc(marks, func(mark []byte) bool { return bytes.Contains(f.Content, mark) })
		isKey := bytes.Contains(f.Content, []byte("PRIVATE KEY")) || bytes.Equal(f.Content, munge)
		if found != isKey {
			t.Errorf("%s is a key: %v, and found by its content: %v", f.Path, isKey, found)
		}
		if isKey {
			keys++
		}
	}
	if keys != 5 {
		t.Errorf("a member has %d keys, want 5", keys)
	}
}
