// A server for tests of the engine on TiKV. On one port, it serves TiKV's protocol (tikvpb) and that of a placement
// driver (pdpb). The data is in unistore, the TiKV that TiDB embeds for its own tests. The same port answers HTTP
// requests of tests: counts, keys, splits of regions, lost requests, lost answers.
//
// Unistore has TiKV's versions of keys, its locks, and its commits in one and in two phases. It has one store, no
// Raft, and no leader that changes.
package main

import (
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/pingcap/kvproto/pkg/metapb"
	"github.com/pingcap/kvproto/pkg/pdpb"
	"github.com/pingcap/kvproto/pkg/tikvpb"
	"github.com/pingcap/tidb/store/mockstore/unistore/config"
	unistore "github.com/pingcap/tidb/store/mockstore/unistore/server"
	"github.com/pingcap/tidb/store/mockstore/unistore/tikv"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/h2c"
	"google.golang.org/grpc"
)

const (
	clusterID = 1
	// TiKV's default limit of the size of an answer, server.max-grpc-send-msg-len.
	mostSentBytes = 10 << 20
	// TiKV does not limit the size of a request.
	mostReceivedBytes = 1 << 30
)

func main() {
	listen := flag.String("listen", "127.0.0.1:2379", "the `address` of the store and the placement driver")
	dir := flag.String("dir", "", "keep committed data in this `directory`, where it survives a kill; else it is gone")
	flag.Parse()
	store, regions, err := open(*dir)
	if err != nil {
		log.Fatal(err)
	}
	control := newControl(store, regions)
	server := grpc.NewServer(grpc.UnaryInterceptor(control.intercept),
		grpc.MaxRecvMsgSize(mostReceivedBytes), grpc.MaxSendMsgSize(mostSentBytes))
	tikvpb.RegisterTikvServer(server, store)
	pdpb.RegisterPDServer(server, &placement{regions: regions, control: control})
	both := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			server.ServeHTTP(w, r)
		} else {
			control.ServeHTTP(w, r)
		}
	})
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(listener, h2c.NewHandler(both, &http2.Server{MaxConcurrentStreams: 1 << 20})))
}

// Opens the store, with one region at first.
func open(dir string) (*tikv.Server, *tikv.MockRegionManager, error) {
	conf := config.DefaultConf
	conf.Engine.ValueThreshold = 0
	conf.Engine.NumCompactors = 1
	conf.Engine.DBPath = dir
	if dir == "" {
		temporary, err := os.MkdirTemp(".", "unistore")
		if err != nil {
			return nil, nil, err
		}
		conf.Engine.DBPath = temporary
		conf.Engine.VolatileMode = true
		conf.Engine.SyncWrite = false
	}
	if err := os.MkdirAll(conf.Engine.DBPath, 0o755); err != nil {
		return nil, nil, err
	}
	store, regions, _, err := unistore.NewMock(&conf, clusterID)
	if err != nil {
		return nil, nil, err
	}
	if known, err := regions.IsBootstrapped(); known || err != nil {
		return store, regions, err
	}
	stores := []*metapb.Store{{Id: regions.AllocID(), Address: "this"}}
	peers := []*metapb.Peer{{Id: regions.AllocID(), StoreId: stores[0].Id}}
	region := &metapb.Region{Id: regions.AllocID(), Peers: peers, RegionEpoch: &metapb.RegionEpoch{}}
	return store, regions, regions.Bootstrap(stores, region)
}
