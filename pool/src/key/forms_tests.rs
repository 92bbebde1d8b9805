//! Text keys as the other pools write them, and texts that are none.

use super::*;

#[test]
fn keys_of_ascend_store_round_trip() {
    let text = "Qwen/Qwen2.5-72B@pcp0@dcp1@head_or_tp_rank:3@pp_rank:2@00ff10";
    let key: AscendKey = text.parse().unwrap();
    let expected = AscendKey {
        model: "Qwen/Qwen2.5-72B".into(),
        pcp_rank: 0,
        dcp_rank: 1,
        head_or_tp_rank: 3,
        pp_rank: Some(2),
        group: None,
        layer: None,
        hash: vec![0, 0xff, 0x10],
    };
    assert_eq!(key, expected);
    for text in [
        text,
        "odd@pcp1@name@pcp0@dcp1@head_or_tp_rank:4294967295@pp_rank:0@ab",
        "m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@group:1@cache_role:state@cache_family:c128@ab",
        "m@pcp0@dcp0@head_or_tp_rank:0@group:0@cache_role:kv@cache_family:default@layer_id:61@ab",
    ] {
        assert_eq!(text.parse::<AscendKey>().unwrap().to_string(), text);
    }
}

#[test]
fn keys_of_lmcache_round_trip() {
    let key = LmcacheKey { model: "meta/Llama".into(), world: 8, worker: 3, hash: 0xbeef, layer: None };
    assert_eq!(key.to_string(), "vllm@meta_Llama@8@3@000000000000beef");
    let read: LmcacheKey = key.to_string().parse().unwrap();
    assert_eq!(read, LmcacheKey { model: "meta_Llama".into(), ..key });
    let layer = "vllm@m@8@3@ffffffffffffffff@31";
    assert_eq!(layer.parse::<LmcacheKey>().unwrap().layer, Some(31));
    assert_eq!(layer.parse::<LmcacheKey>().unwrap().to_string(), layer);
    for text in ["meta-llama/L@08050401@7@00ff", "m@ffffffff@ffffffff@ab@tenant-a"] {
        assert_eq!(text.parse::<ObjectKey>().unwrap().to_string(), text);
    }
    let key: ObjectKey = "m@08050401@a@00ff@s".parse().unwrap();
    assert_eq!((key.ranks(), key.group, key.hash, key.salt.as_str()), ([8, 5, 4, 1], 10, vec![0, 0xff], "s"));
}

#[test]
fn the_wrong_field_is_named() {
    fn fails<K: FromStr<Err = Error> + fmt::Debug>(field: &str, texts: &[&str]) {
        for text in texts {
            let error = text.parse::<K>().unwrap_err();
            assert!(error.status == ferry::Status::Invalid, "{text}: {error}");
            assert!(error.message.starts_with(&format!("{field}: ")), "{text}: {error}");
        }
    }
    let long = format!("{}@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@ab", "m".repeat(FORM_BYTES_MAX));
    fails::<AscendKey>("key", &["", &long]);
    fails::<AscendKey>("model", &["@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@ab"]);
    fails::<AscendKey>(
        "pcp",
        &["m", "m@dcp0@head_or_tp_rank:0@pp_rank:0@ab", "m@pcp+1@dcp0", "m@pcp01@dcp0", "m@pcp"],
    );
    fails::<AscendKey>("dcp", &["m@pcp0@pcd0", "m@pcp0", "m@pcp0@dcp4294967296@head_or_tp_rank:0"]);
    fails::<AscendKey>("head_or_tp_rank", &["m@pcp0@dcp0@head_or_tp_rank0@pp_rank:0@ab"]);
    fails::<AscendKey>(
        "pp_rank",
        &[
            "m@pcp0@dcp0@head_or_tp_rank:0@ab",
            "m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:x@ab",
            "m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@layer_id:1@ab",
        ],
    );
    fails::<AscendKey>(
        "cache_role",
        &[
            "m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@group:0@ab",
            "m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@group:0@cache_role:@cache_family:x@ab",
        ],
    );
    fails::<AscendKey>("cache_family", &["m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@group:0@cache_role:kv@ab"]);
    fails::<AscendKey>(
        "hash",
        &[
            "m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0",
            "m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@",
            "m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@abc",
            "m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@AB",
        ],
    );
    fails::<AscendKey>("end", &["m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@ab@ab"]);

    fails::<LmcacheKey>("format", &["m@m@8@3@000000000000beef", "vllmm@m@8@3@000000000000beef"]);
    fails::<LmcacheKey>("model", &["vllm@@8@3@000000000000beef", "vllm"]);
    fails::<LmcacheKey>("world", &["vllm@m@x@3@000000000000beef", "vllm@m@n@8@3@000000000000beef"]);
    fails::<LmcacheKey>("worker", &["vllm@m@8@-3@000000000000beef", "vllm@m@8"]);
    fails::<LmcacheKey>(
        "hash",
        &["vllm@m@8@3@beef", "vllm@m@8@3@000000000000BEEF", "vllm@m@8@3@+00000000000beef"],
    );
    fails::<LmcacheKey>("layer", &["vllm@m@8@3@000000000000beef@", "vllm@m@8@3@000000000000beef@x"]);
    fails::<LmcacheKey>("end", &["vllm@m@8@3@000000000000beef@1@2"]);

    fails::<ObjectKey>("model", &["@08050401@7@00ff"]);
    fails::<ObjectKey>("kv_rank", &["m@8050401@7@00ff", "m@008050401@7@00ff", "m"]);
    fails::<ObjectKey>(
        "object_group_id",
        &["m@08050401@@00ff", "m@08050401@123456789@00ff", "m@08050401@07@00ff"],
    );
    fails::<ObjectKey>("hash", &["m@08050401@7@", "m@08050401@7@0xff"]);
    fails::<ObjectKey>("salt", &["m@08050401@7@00ff@", "m@08050401@7@00ff@a/b"]);
    fails::<ObjectKey>("end", &["m@08050401@7@00ff@a@b"]);
    let key: AscendKey = "m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@ab".parse().unwrap();
    assert!(AscendKey { pp_rank: None, ..key.clone() }.check().is_err());
    assert!(AscendKey { hash: vec![], ..key }.check().is_err());
    assert!(LmcacheKey { model: "a@b".into(), world: 1, worker: 0, hash: 0, layer: None }.check().is_err());
}
