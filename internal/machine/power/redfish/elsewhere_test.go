package redfish_test

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestNeitherLinksNorRedirectsLeadThePasswordElsewhere(t *testing.T) {
	t.Parallel()
	var caught atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		caught.Add(1)
		w.WriteHeader(http.StatusTeapot)
	}))
	t.Cleanup(elsewhere.Close)
	const sessions = "/redfish/v1/SessionService/Sessions"
	for name, link := range map[string]string{"a redirect": sessions, "a link": elsewhere.URL + sessions} {
		bmc := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, sessions) {
				http.Redirect(w, r, elsewhere.URL+sessions, http.StatusTemporaryRedirect) // the body goes there, too (RFC 9110, section 15.4.8)
				return
			}
			answer(w, 200, values{"Systems": at("/redfish/v1/Systems"), "Links": values{"Sessions": at(link)}})
		}))
		bmc.Config.ErrorLog = log.New(io.Discard, "", 0)
		bmc.Start()
		t.Cleanup(bmc.Close)
		if state, err := switchOf(t, target(bmc.URL, "one")).Observe(t.Context()); err == nil || state != api.PowerUnknown {
			t.Errorf("%s: got %s, %v", name, state, err)
		}
		if n := caught.Load(); n > 0 {
			t.Errorf("%s: %d requests came elsewhere", name, n)
		}
	}
}
