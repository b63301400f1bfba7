DELETE FROM hookonce.format;
INSERT INTO hookonce.format OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.format, '[{"number":1}]');
DELETE FROM hookonce.seen;
INSERT INTO hookonce.seen OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.seen, '[{"format":1,"at":1800000000}]');
DELETE FROM hookonce.ids;
INSERT INTO hookonce.ids OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.ids, E'[{"key":"\\\\x0b272b5c679ad89fbf6e960fc79a5db1","expires":1801296000,"endpoint":null,"token":null,"until":null,"lease":null,"attempt":null,"finished":null,"outstanding":null,"history":null}, 
 {"key":"\\\\x88cd78602675d4d248419876e5e3bbd2","expires":1801296000,"endpoint":"default","token":"claim of evt_claimed","until":1800000600,"lease":600,"attempt":1,"finished":null,"outstanding":null,"history":null}, 
 {"key":"\\\\x9f2bb5de557db7d2c6d2e04ec4a1bb28","expires":1801296000,"endpoint":"default","token":null,"until":0,"lease":600,"attempt":1,"finished":["shop.answer"],"outstanding":["shop.greet"],"history":[[1, 1800000000.0, "it failed"]]}, 
 {"key":"\\\\x9486d3f9329cc005b66064cefaff3494","expires":1801296000,"endpoint":null,"token":null,"until":null,"lease":null,"attempt":null,"finished":null,"outstanding":null,"history":null}, 
 {"key":"\\\\x7d3dce260c0b50a59d0d36a02a04494f","expires":1801296000,"endpoint":null,"token":null,"until":null,"lease":null,"attempt":null,"finished":null,"outstanding":null,"history":null}, 
 {"key":"\\\\xfe8369633536916adbfe6634646e549e","expires":1801296000,"endpoint":null,"token":null,"until":null,"lease":null,"attempt":null,"finished":null,"outstanding":null,"history":null}, 
 {"key":"\\\\xfc9dbe4903fc0feeb76a81037a003eee","expires":1801296000,"endpoint":null,"token":null,"until":null,"lease":null,"attempt":null,"finished":null,"outstanding":null,"history":null}, 
 {"key":"\\\\xc7d399af7f5b11c70b6384ef36e4a246","expires":1801296000,"endpoint":null,"token":null,"until":null,"lease":null,"attempt":null,"finished":null,"outstanding":null,"history":null}]');
DELETE FROM hookonce.entries;
INSERT INTO hookonce.entries OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.entries, E'[{"id":1,"key":"\\\\xfe8369633536916adbfe6634646e549e","endpoint":"default","event_id":"evt_fetched","event_type":"comment.received","received_at":1799999995,"size":14,"part":0,"enqueue_token":"enqueue 1","due":1800000000,"delay":0,"key_lock":null,"token":"fetch","until":1800000600,"lease":600,"attempt":1,"finished":null,"outstanding":null,"history":null}, 
 {"id":2,"key":"\\\\xfc9dbe4903fc0feeb76a81037a003eee","endpoint":"default","event_id":"evt_waiting","event_type":"comment.received","received_at":1799999995,"size":14,"part":0,"enqueue_token":"enqueue 2","due":1800000000,"delay":0,"key_lock":null,"token":null,"until":null,"lease":null,"attempt":0,"finished":null,"outstanding":null,"history":null}]');
DELETE FROM hookonce.bodies;
INSERT INTO hookonce.bodies OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.bodies, E'[{"part":0,"id":1,"body":"\\\\x6576745f6665746368656400c3bf"}, 
 {"part":0,"id":2,"body":"\\\\x6576745f77616974696e6700c3bf"}]');
DELETE FROM hookonce.body_part;
INSERT INTO hookonce.body_part OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.body_part, '[{"part":0,"since":1795890715.499641}]');
DELETE FROM hookonce.pruned;
INSERT INTO hookonce.pruned OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.pruned, '[{"at":1795890715.50046}]');
DELETE FROM hookonce.dead;
INSERT INTO hookonce.dead OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.dead, E'[{"id":1,"key":"\\\\x9486d3f9329cc005b66064cefaff3494","endpoint":"default","event_id":"evt_dead","event_type":"comment.received","received_at":1799999995,"reason":"rejected","error":"the shop is closed","buried_at":1800000000,"kept":0,"body":"\\\\x6576745f6465616400c3bf","record":null,"token":null,"until":0,"lease":600,"attempt":1,"finished":["shop.answer"],"outstanding":["shop.greet"],"history":[[1, 1800000000.0, "the shop is closed"]]}, 
 {"id":2,"key":"\\\\x7d3dce260c0b50a59d0d36a02a04494f","endpoint":"default","event_id":"evt_kept","event_type":"comment.received","received_at":1799999995,"reason":"exhausted","error":"it failed","buried_at":1800003600,"kept":2,"body":"\\\\x6576745f6b65707400c3bf","record":null,"token":null,"until":0,"lease":600,"attempt":1,"finished":null,"outstanding":null,"history":[[1, 1800000000.0, "it failed"]]}]');
DELETE FROM hookonce.handled;
INSERT INTO hookonce.handled OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.handled, E'[{"id":1,"key":"\\\\xc7d399af7f5b11c70b6384ef36e4a246","endpoint":"default","event_id":"evt_handled","event_type":"comment.received","received_at":1799999995,"finished":["shop.answer"],"handled_at":1800000000,"expires":1800259200,"size":14,"body":"\\\\x6576745f68616e646c656400c3bf"}]');
DELETE FROM hookonce.handled_sizes;
INSERT INTO hookonce.handled_sizes OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.handled_sizes, '[{"endpoint":"default","slot":61,"events":1,"bytes":14}]');
DELETE FROM hookonce.replay_batches;
INSERT INTO hookonce.replay_batches OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.replay_batches, '[{"endpoint":"default","handler":"shop.answer","generation":2,"plan":{"since_seconds": 3600.0, "where": ["data.platform=x"], "late": true},"started_at":1800000000,"finished_at":null}]');
DELETE FROM hookonce.finishes;
DELETE FROM hookonce.workers;
INSERT INTO hookonce.workers OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.workers, '[{"worker":"w1","endpoint":"default","seen":1800000000}]');
DELETE FROM hookonce.key_locks;
INSERT INTO hookonce.key_locks OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.key_locks, E'[{"key":"\\\\xfa3d38ff0b9ccebccffb243d8943f3d7","token":null,"until":1800000600,"lease":600,"created_at":1799999000000000,"event_id":"evt_newest","generation":0,"expires":1801296000}, 
 {"key":"\\\\xf89ecfddf91f65316e58e1bf5dda6005","token":"lock 2","until":1800000600,"lease":600,"created_at":null,"event_id":null,"generation":null,"expires":0}]');
DELETE FROM hookonce.waiting;
INSERT INTO hookonce.waiting OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.waiting, E'[{"place":1,"key_lock":"\\\\xf89ecfddf91f65316e58e1bf5dda6005","event":"default:evt_waiting"}]');
DELETE FROM hookonce.applications;
INSERT INTO hookonce.applications OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.applications, E'[{"endpoint":"default","mark":"\\\\x5e8ba0da1b3055ce0f61050f0eb61c5d","application":[["shop.greet"], ["mark"]],"seen":1800000000,"place":1}]');
DELETE FROM hookonce.activity;
DELETE FROM hookonce.watched;
DELETE FROM hookonce.worker_reports;
DELETE FROM hookonce.ignored;
INSERT INTO hookonce.ignored OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.ignored, '[{"endpoint":"default","event_type":"message.received","first":1799999000,"last":1799999500}]');
DELETE FROM hookonce.accepted;
INSERT INTO hookonce.accepted OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::hookonce.accepted, E'[{"key":"\\\\xe71035844f202e8aa73aa85a3942880a","expires":1801296000}]');
SELECT setval('hookonce.applications_place_seq', 1);
SELECT setval('hookonce.dead_id_seq', 2);
SELECT setval('hookonce.entries_id_seq', 2);
SELECT setval('hookonce.handled_id_seq', 1);
SELECT setval('hookonce.waiting_place_seq', 1);
