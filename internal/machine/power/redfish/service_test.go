package redfish_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
)

// service is a Redfish service as strict as DSP0266 allows: sessions, few of them, If-Match, two systems, what it allows told apart.
type service struct {
	URL, certificate string

	mu        sync.Mutex
	sessions  map[string]string // path by token
	limit     int
	made      int
	needsETag bool
	version   int
	power     any // PowerState of "one"
	boot      map[string]any
	resets    []string
	targets   []string
	types     []string
	actioned  bool // the types are told in ActionInfo
	logins    int
	refuse    map[string]int // status by "METHOD path"; 200: with a page for people
	loggedIn  func()         // called before the answer to a login
	chassis   []any          // of "one"
	managers  []any          // of "one"
	resources map[string]values
	root      values                                                         // more of the service root
	more      func(w http.ResponseWriter, r *http.Request, body []byte) bool // true: it has answered
	password  string
}

func serve(t *testing.T, secure bool) *service {
	s := &service{
		sessions: map[string]string{}, limit: 8, power: "Off", targets: []string{"None", "Pxe", "UefiHttp"}, boot: map[string]any{},
		types: []string{"On", "ForceOff", "GracefulShutdown"}, refuse: map[string]int{}, password: powertest.Password,
	}
	server := httptest.NewUnstartedServer(s)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that don't like its certificate
	if secure {
		server.StartTLS()
		sum := sha256.Sum256(server.Certificate().Raw)
		s.certificate = hex.EncodeToString(sum[:])
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func refuse(w http.ResponseWriter, code int, id, message string) {
	answer(w, code, map[string]any{"error": map[string]any{
		"code": "Base.1.18.GeneralError", "message": "See ExtendedInfo",
		"@Message.ExtendedInfo": []any{map[string]any{"MessageId": "Base.1.18." + id, "Message": message}},
	}})
}

type values = map[string]any

func at(path string) values { return values{"@odata.id": path} }

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	switch code := s.refuse[r.Method+" "+r.URL.Path]; code {
	case 0:
	case http.StatusOK:
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<html>The BMC starts, please wait</html>")
		return
	default:
		refuse(w, code, "PropertyValueNotInList", "not with this URI")
		return
	}
	switch r.URL.Path {
	case "/redfish/v1/":
		root := values{"Systems": at("/redfish/v1/Systems"), "Links": values{"Sessions": at("/redfish/v1/SessionService/Sessions")}}
		maps.Copy(root, s.root)
		answer(w, 200, root)
		return
	case "/redfish/v1/SessionService/Sessions":
		s.login(w, body)
		return
	}
	token := r.Header.Get("X-Auth-Token")
	if s.sessions[token] == "" {
		refuse(w, 401, "NoValidSession", "There is no valid session")
		return
	}
	const one = "/redfish/v1/Systems/one"
	switch r.Method + " " + r.URL.Path {
	case "DELETE " + s.sessions[token]:
		delete(s.sessions, token)
		w.WriteHeader(204)
	case "GET /redfish/v1/Systems":
		if r.URL.RawQuery == "" {
			answer(w, 200, values{"Members": []any{at("/redfish/v1/Systems/two")}, "Members@odata.nextLink": "/redfish/v1/Systems?$skip=1"})
			return
		}
		answer(w, 200, values{"Members": []any{at(one)}})
	case "GET /redfish/v1/Systems/two":
		answer(w, 200, values{"Id": "two", "Name": "Server", "UUID": "38947555-7742-3448-3784-823347823834", "PowerState": "On"})
	case "GET " + one:
		w.Header().Set("ETag", fmt.Sprintf(`W/"%d"`, s.version))
		answer(w, 200, s.system(one))
	case "GET /redfish/v1/ResetInfo":
		answer(w, 200, values{"Parameters": []any{values{"Name": "ResetType", "AllowableValues": s.types}}})
	case "PATCH " + one:
		s.patch(w, r, body)
	case "POST " + one + "/Reset":
		s.reset(w, body)
	default:
		if r.Method == http.MethodGet && s.resources[r.URL.Path] != nil {
			answer(w, 200, s.resources[r.URL.Path])
			return
		}
		if s.more != nil && s.more(w, r, body) {
			return
		}
		refuse(w, 404, "ResourceMissingAtURI", "not here")
	}
}

func (s *service) login(w http.ResponseWriter, body []byte) {
	var login struct{ UserName, Password string }
	_ = json.Unmarshal(body, &login)
	s.logins++
	switch {
	case login.UserName != powertest.User || login.Password != s.password:
		refuse(w, 401, "ResourceAtUriUnauthorized", "wrong")
	case len(s.sessions) >= s.limit:
		refuse(w, 503, "SessionLimitExceeded", "too many sessions")
	default:
		s.made++
		token, path := fmt.Sprintf("token%d", s.made), fmt.Sprintf("/redfish/v1/SessionService/Sessions/%d", s.made)
		s.sessions[token] = path
		if s.loggedIn != nil {
			s.loggedIn()
		}
		w.Header().Set("X-Auth-Token", token)
		w.Header().Set("Location", s.URL+path)
		answer(w, 201, values{})
	}
}

func (s *service) system(path string) values {
	reset := values{"target": path + "/Reset"}
	if s.actioned {
		reset["@Redfish.ActionInfo"] = "/redfish/v1/ResetInfo"
	} else {
		reset["ResetType@Redfish.AllowableValues"] = s.types
	}
	return values{
		"@odata.id": path, "Id": "one", "Name": "Server", "UUID": "38947555-7742-3448-3784-823347823835", "PowerState": s.power,
		"Links": values{"Chassis": s.chassis, "ManagedBy": s.managers},
		"Boot":  values{"BootSourceOverrideTarget@Redfish.AllowableValues": s.targets}, "Actions": values{"#ComputerSystem.Reset": reset},
	}
}

func (s *service) patch(w http.ResponseWriter, r *http.Request, body []byte) {
	if s.needsETag && r.Header.Get("If-Match") != fmt.Sprintf(`W/"%d"`, s.version) {
		refuse(w, 428, "PreconditionRequired", "say which state you change")
		return
	}
	var change struct{ Boot map[string]any }
	_ = json.Unmarshal(body, &change)
	if s.refuse["PATCH "+fmt.Sprint(change.Boot["BootSourceOverrideTarget"])] != 0 {
		refuse(w, 400, "PropertyValueNotInList", "not with this URI")
		return
	}
	s.version++
	s.boot = change.Boot
	w.WriteHeader(204)
}

func (s *service) reset(w http.ResponseWriter, body []byte) {
	var order struct{ ResetType string }
	_ = json.Unmarshal(body, &order)
	s.resets = append(s.resets, order.ResetType)
	s.power = "Off"
	if strings.HasSuffix(order.ResetType, "On") {
		s.power = "On"
	}
	w.WriteHeader(204)
}
