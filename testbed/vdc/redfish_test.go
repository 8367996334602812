package vdc

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

const testSystem = "cd0f43ba-f7e3-5470-a2cf-3c62ed4f3424"

// redfishFixture is a proxy before a stand-in for sushy-tools.
type redfishFixture struct {
	fault    *bmcFault
	proxy    *redfishProxy
	url      string
	client   *http.Client
	lastBody string
	bootURIs []string
}

func newRedfishFixture(t *testing.T) *redfishFixture {
	f := &redfishFixture{fault: &bmcFault{}}
	backend := http.NewServeMux()
	backend.HandleFunc("GET /redfish/v1/Systems", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"Members": []any{1, 2}, "Members@odata.count": 2})
	})
	backend.HandleFunc("GET /redfish/v1/Systems/{id}", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"PowerState": "Off", "Boot": map[string]any{}})
	})
	backend.HandleFunc("PATCH /redfish/v1/Systems/{id}", func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		f.lastBody = string(text)
		w.WriteHeader(http.StatusNoContent)
	})
	backend.HandleFunc("GET /redfish/v1/", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"Id": "RedvirtService"})
	})
	protected := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != "u" || password != "p" {
			t.Errorf("the backend was asked for %s without credentials", r.URL)
		}
		backend.ServeHTTP(w, r)
	})
	emulator := httptest.NewServer(protected)
	t.Cleanup(emulator.Close)
	f.proxy = newRedfishProxy(strings.TrimPrefix(emulator.URL, "http://"), testSystem, f.fault, "u", "p")
	f.proxy.setBoot = func(_ context.Context, uri string) error {
		if strings.HasPrefix(uri, "ftp:") {
			return errors.New("no FTP")
		}
		f.bootURIs = append(f.bootURIs, uri)
		return nil
	}
	front := httptest.NewServer(f.proxy)
	t.Cleanup(front.Close)
	f.url, f.client = front.URL, front.Client()
	return f
}

// ask sends a request and returns status, headers and the body as an object.
func (f *redfishFixture) ask(t *testing.T, method, path, body string, change func(*http.Request)) (int, http.Header, map[string]any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth("u", "p")
	if change != nil {
		change(request)
	}
	response, err := f.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	var object map[string]any
	_ = json.Unmarshal(text, &object)
	return response.StatusCode, response.Header, object
}

const systemPath = "/redfish/v1/Systems/" + testSystem

func TestABMCShowsItsOwnSystemOnly(t *testing.T) {
	f := newRedfishFixture(t)
	if _, _, body := f.ask(t, "GET", "/redfish/v1/Systems", "", nil); body["Members@odata.count"] != 1.0 {
		t.Errorf("systems: %v", body)
	}
	if status, _, _ := f.ask(t, "GET", "/redfish/v1/Systems/11111111-f7e3-5470-a2cf-3c62ed4f3424", "", nil); status != http.StatusNotFound {
		t.Errorf("another machine's system: %d", status)
	}
}

func TestTheServiceRootIsOpenAndAllElseIsNot(t *testing.T) {
	f := newRedfishFixture(t)
	nobody := func(r *http.Request) { r.Header.Del("Authorization") }
	if status, _, body := f.ask(t, "GET", "/redfish/v1/", "", nobody); status != http.StatusOK || body["Links"] == nil {
		t.Errorf("root: %d %v", status, body)
	}
	if status, _, _ := f.ask(t, "GET", systemPath, "", nobody); status != http.StatusUnauthorized {
		t.Errorf("system without credentials: %d", status)
	}
	wrong := func(r *http.Request) { r.SetBasicAuth("u", "wrong") }
	if status, _, _ := f.ask(t, "GET", systemPath, "", wrong); status != http.StatusUnauthorized {
		t.Errorf("system with a wrong password: %d", status)
	}
}

func TestBMCFaultsAtRedfish(t *testing.T) {
	f := newRedfishFixture(t)
	for _, test := range []struct {
		kind   FaultKind
		status int
		power  any
	}{
		{FaultNone, 200, "Off"},
		{FaultSaysOn, 200, "On"},
		{FaultSaysOff, 200, "Off"},
		{FaultUnknown, 200, nil},
		{FaultRefuse, 401, nil},
		{FaultGarbage, 200, nil},
		{FaultSessions, 200, "Off"},
		{FaultNone, 200, "Off"},
	} {
		f.fault.set(BMCFault{Kind: test.kind, Limit: 8})
		status, header, body := f.ask(t, "GET", systemPath, "", nil)
		if status != test.status || body["PowerState"] != test.power {
			t.Errorf("fault %q: %d %v", test.kind, status, body)
		}
		if html := header.Get("Content-Type") == "text/html"; html != (test.kind == FaultGarbage) {
			t.Errorf("fault %q: %s", test.kind, header.Get("Content-Type"))
		}
	}
}

func TestASilentAndASlowBMCKeepTheirClientWaiting(t *testing.T) {
	f := newRedfishFixture(t)
	for _, fault := range []BMCFault{{Kind: FaultSilent}, {Kind: FaultSlow, Delay: time.Hour}} {
		f.fault.set(fault)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+"/redfish/v1", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.client.Do(request); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("fault %q: %v", fault.Kind, err)
		}
	}
	f.fault.set(BMCFault{Kind: FaultSlow, Delay: time.Millisecond})
	if status, _, _ := f.ask(t, "GET", "/redfish/v1", "", nil); status != http.StatusOK {
		t.Errorf("a slow BMC answers %d in the end", status)
	}
}

func TestSessionsAreCountedLimitedAndClosed(t *testing.T) {
	f := newRedfishFixture(t)
	f.fault.set(BMCFault{Kind: FaultSessions, Limit: 8})
	login := `{"UserName": "u", "Password": "p"}`
	var location, token string
	for i := range 9 {
		status, header, _ := f.ask(t, "POST", sessionsPath, login, nil)
		if want := 201; i == 8 {
			want = 503
			if status != want {
				t.Errorf("session %d: %d", i+1, status)
			}
			break
		} else if status != want {
			t.Fatalf("session %d: %d", i+1, status)
		}
		location, token = header.Get("Location"), header.Get("X-Auth-Token")
	}
	if n := f.proxy.openSessions(); n != 8 {
		t.Errorf("%d sessions are open", n)
	}
	byToken := func(r *http.Request) { r.Header.Del("Authorization"); r.Header.Set("X-Auth-Token", token) }
	if status, _, body := f.ask(t, "GET", systemPath, "", byToken); status != 200 || body["PowerState"] != "Off" {
		t.Errorf("with a token: %d %v", status, body)
	}
	if status, _, _ := f.ask(t, "DELETE", location, "", byToken); status != 204 {
		t.Errorf("closing a session: %d", status)
	}
	if status, _, _ := f.ask(t, "GET", systemPath, "", byToken); status != 401 {
		t.Errorf("with the token of a closed session: %d", status)
	}
	if status, _, _ := f.ask(t, "POST", sessionsPath, `{"UserName": "u", "Password": "no"}`, nil); status != 401 {
		t.Errorf("a session with a wrong password: %d", status)
	}
}

func TestABootURIIsToldTheFirmwareAndAskedOfTheEmulatorAsNetworkBoot(t *testing.T) {
	f := newRedfishFixture(t)
	const uri = "http://10.0.0.1/ipxe.efi"
	patch := func(boot string) int {
		status, _, _ := f.ask(t, "PATCH", systemPath, `{"Boot": `+boot+`}`, nil)
		return status
	}
	if status := patch(`{"BootSourceOverrideTarget": "UefiHttp", "HttpBootUri": "` + uri + `"}`); status != 204 {
		t.Errorf("setting a boot URI: %d", status)
	}
	if want := `{"Boot":{"BootSourceOverrideTarget":"Pxe"}}`; f.lastBody != want {
		t.Errorf("the emulator was told %s, want %s", f.lastBody, want)
	}
	boot := func() map[string]any {
		_, _, body := f.ask(t, "GET", systemPath, "", nil)
		boot, _ := body["Boot"].(map[string]any)
		return boot
	}
	if got := boot(); got["HttpBootUri"] != uri || got["BootSourceOverrideTarget"] != "UefiHttp" {
		t.Errorf("boot is %v", got)
	}
	if status := patch(`{"HttpBootUri": "ftp://10.0.0.1/x"}`); status != 400 {
		t.Errorf("a URI that the firmware refuses: %d", status)
	}
	if status := patch(`{"BootSourceOverrideTarget": "Hdd"}`); status != 204 || boot()["HttpBootUri"] != nil {
		t.Errorf("another boot device: %d, boot is %v", status, boot())
	}
	if want := []string{uri, ""}; !slices.Equal(f.bootURIs, want) {
		t.Errorf("the firmware was told %q, want %q", f.bootURIs, want)
	}
}
