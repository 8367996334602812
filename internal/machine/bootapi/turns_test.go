package bootapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/bootapi"
)

// from sends a message from an address, through all that bounds what is sent, and returns the status.
func from(t *testing.T, h http.Handler, address, path, session string, body any) int {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Error(err)
	}
	r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(data))
	r.RemoteAddr = address
	r.Header.Set("Authorization", "Bearer "+session)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		var problem boot.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil || problem.Detail == "" || problem.Status != w.Code {
			t.Errorf("%s is answered with %d %q: %v", path, w.Code, w.Body, err)
		}
	}
	return w.Code
}

const hostile, honest = "10.9.0.66:4000", "10.9.0.7:4000"

// A machine with a token that is good sends it with another nonce each time, and each is worked at: only the first is exchanged.
func TestAFloodOfHellosIsNotWorkedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.machine(api.MachineBooting, api.BootEnvironment)
		h := bootapi.HTTPServer(s.handler, slog.New(slog.DiscardHandler)).Handler
		hello := func(address, nonce string) int {
			return from(t, h, address, boot.HelloPath, "", boot.Hello{
				Token: boot.Seal(secret, s.claims(3, api.BootEnvironment)), Nonce: nonce, MACs: []string{mac}, Request: "the request of a key",
			})
		}
		if status := hello(hostile, "0"); status != http.StatusOK {
			t.Fatalf("the first hello: %d", status)
		}
		const flood = 1000
		counts := map[int]int{}
		for i := range flood {
			counts[hello(hostile, fmt.Sprint("flood ", i))]++
		}
		if counts[http.StatusTooManyRequests]+counts[http.StatusConflict] != flood || counts[http.StatusConflict] > 100 {
			t.Errorf("%d hellos in one moment are answered %v, want 100 worked at, at most", flood, counts)
		}
		if s.identities > 100 {
			t.Errorf("%d hellos in one moment had %d identities made", flood, s.identities)
		}
		if status := hello(honest, "0"); status != http.StatusOK {
			t.Errorf("a hello of another address beside the flood: %d", status)
		}
	})
}

func TestAFloodOfSharesIsNotWorkedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.machine(api.MachineBooting, api.BootEnvironment)
		h := bootapi.HTTPServer(s.handler, slog.New(slog.DiscardHandler)).Handler
		welcome, status, detail := s.hello(s.claims(3, api.BootEnvironment), "0")
		if status != http.StatusOK {
			t.Fatal(detail)
		}
		share := func(address string) int {
			return from(t, h, address, boot.SharePath, welcome.Session, boot.Sharing{Shares: []boot.Share{{Digest: s.digest, Port: 7}}})
		}
		const flood = 1000
		counts := map[int]int{}
		for range flood {
			counts[share(hostile)]++
		}
		if counts[http.StatusTooManyRequests]+counts[http.StatusOK] != flood || counts[http.StatusOK] > 100 || counts[http.StatusOK] == 0 {
			t.Errorf("%d shares in one moment are answered %v, want 100 worked at, at most", flood, counts)
		}
		if status := share(honest); status != http.StatusOK {
			t.Errorf("a share from another address beside the flood: %d", status)
		}
	})
}

// Requests that take long are bounded by how many are open.
func TestAMachineHasFewRequestsOpenAndComesAgainAfterThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		open, most := 0, 0
		goOn := make(chan struct{})
		slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			open++
			most = max(most, open)
			mu.Unlock()
			<-goOn
			mu.Lock()
			open--
			mu.Unlock()
			_, _ = w.Write([]byte("{}"))
		})
		h := bootapi.HTTPServer(slow, slog.New(slog.DiscardHandler)).Handler
		var flood sync.WaitGroup
		for range 30 {
			flood.Go(func() { from(t, h, hostile, "/", "", nil) })
		}
		synctest.Wait()
		if most < 2 || most > 10 {
			t.Errorf("%d requests of one machine are open, want 10 at most", most)
		}
		flood.Go(func() {
			if status := from(t, h, honest, "/", "", nil); status != http.StatusOK {
				t.Errorf("a request of another machine: %d", status)
			}
		})
		synctest.Wait()
		close(goOn)
		flood.Wait()
		if status := from(t, h, hostile, "/", "", nil); status != http.StatusOK {
			t.Errorf("the machine's next request, once the others have ended: %d", status)
		}
	})
}
