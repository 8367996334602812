package etcd_test

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/etcd"
	"github.com/nearmetal/nearmetal/internal/store/storetest"
)

func TestAnExternalEtcdKeepsTheContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return connect(t, serve(t), aliveTTL) })
}

func TestTwoServersOnOneEtcdShareStateAndElectOneLeader(t *testing.T) {
	t.Parallel()
	endpoint := serve(t)
	one, two := connect(t, endpoint, 3*time.Second), connect(t, endpoint, aliveTTL)
	first, err := one.Campaign(t.Context(), "server-1")
	if err != nil {
		t.Fatal(err)
	}
	rev, err := one.Commit(t.Context(), []store.Cond{first.Guard()}, []store.Op{{Key: "k", Value: []byte("v")}})
	if err != nil {
		t.Fatal(err)
	}
	if e, ok, err := two.Get(t.Context(), "k"); !ok || err != nil || e.Revision != rev {
		t.Errorf("the second server reads %+v, %v, %v; want revision %d", e, ok, err, rev)
	}
	// The first server dies: it neither resigns nor keeps its lease alive. The second leads when the lease is over.
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := two.Campaign(t.Context(), "server-2")
	if err != nil {
		t.Fatal(err)
	}
	if second.Term() <= first.Term() {
		t.Errorf("term %d after %d, want more", second.Term(), first.Term())
	}
}

// serve runs an etcd of its own that listens on a Unix socket, and returns its address.
func serve(t *testing.T) string {
	t.Helper()
	// Not t.TempDir: the path of a socket is at most 107 bytes.
	dir, err := os.MkdirTemp("", "nm-etcd-")
	if err != nil {
		t.Fatal(err)
	}
	socket := url.URL{Scheme: "unix", Path: filepath.Join(dir, "s")}
	c := embed.NewConfig()
	c.Dir, c.Name = filepath.Join(dir, "data"), "external"
	c.ListenPeerUrls = nil
	c.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: "external"}}
	c.InitialCluster = "external=unix://external"
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{socket}, []url.URL{socket}
	c.TickMs, c.ElectionMs = 10, 50
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Close()
		_ = os.RemoveAll(dir)
	})
	<-e.Server.ReadyNotify()
	return socket.String()
}

func connect(t *testing.T, endpoint string, ttl time.Duration) *etcd.Store {
	t.Helper()
	s, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{endpoint}, LeaderTTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}
